"""Ports, senders, what the kernel refuses: the parts that only real sockets have."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rocemu.capture import EndpointCapture
from rocemu.net import NetError, Nic, connect, listen
from rocemu.net import senders as senders_module
from rocemu.net.sockets import bind_sender, checked_mtu, largest_mtu, resolve, source_address
from rocemu.transport import Disconnected, SendWR
from rocemu.verbs import MTU, WROpcode
from rocemu.wire import Flow, Packet, icrc_of
from tests.net.pair import (
    ALL,
    PEER_PSN,
    Log,
    next_address,
    pair,
    ready_qp,
    served,
    stranger,
    tapped,
    until,
    write_packet,
)


@contextmanager
def taken(address: str, port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((address, port))
        yield sock


async def test_two_nics_at_one_address() -> None:
    async with await Nic.open(next_address()) as first:
        with pytest.raises(NetError) as caught:
            await Nic.open(first.address)
        assert str(caught.value) == (
            f"UDP port 4791 of {first.address} is in use, by another rocemu or by the kernel's "
            "rdma_rxe"
        )
    async with await Nic.open(first.address):
        pass  # closed is free again, at once


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("203.0.113.1", "UDP port 4791 of 203.0.113.1 cannot be bound: the address is not one of"),
        ("0.0.0.0", "0.0.0.0 is no address to bind"),
        ("::", ":: is no address to bind"),
    ],
)
async def test_an_address_that_cannot_be_ours(address: str, sentence: str) -> None:
    with pytest.raises(NetError, match=sentence):
        await Nic.open(address)


async def test_a_taken_source_port_moves_to_the_next() -> None:
    """The ICRC covers the port, so it must be that of the port that it left from."""
    async with await Nic.open(next_address()) as nic, stranger(nic.address) as peer:
        qp = ready_qp(nic, peer.address)
        wanted = qp.flow.source_port
        assert 0xC000 <= wanted < 0xFFFD
        with taken(nic.address, wanted), taken(nic.address, wanted + 1):
            qp.post_send(SendWR(1, WROpcode.IBV_WR_SEND))
            nic.pump()
            loop = asyncio.get_running_loop()
            data, (source, port) = await loop.sock_recvfrom(peer.inbox, 9216)
        assert (source, port) == (nic.address, wanted + 2)
        right = icrc_of(data[:-4], Flow(nic.address, peer.address, port))
        assert data[-4:] == right.to_bytes(4, "little")


async def test_the_last_source_port_wraps_to_the_first() -> None:
    address = next_address()
    with taken(address, 0xFFFF), bind_sender(address, 0xFFFF) as sender:
        assert sender.getsockname()[1] == 0xC000


async def test_no_source_port_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    address = next_address()
    monkeypatch.setattr("rocemu.net.sockets._LAST_PORT", 0xC001)
    with (
        taken(address, 0xC000),
        taken(address, 0xC001),
        pytest.raises(NetError, match=f"all source ports of {address} from 49152 to 49153"),
    ):
        bind_sender(address, 0xC000)


async def test_what_comes_to_a_source_port_is_counted_and_forgotten() -> None:
    async with served() as (nic, peer, qp, mr, log):
        peer.send_packet(write_packet(qp, mr, b"one"))
        await peer.receive()
        quiet = list(log.events)
        for _ in range(100):
            peer.outbox.sendto(b"stray", (nic.address, qp.flow.source_port))
        await until(lambda: nic.device.counters["to_source_port"] == 100)
        peer.send_packet(write_packet(qp, mr, b"two", psn=101))
        assert (await peer.receive()).bth.psn == 101
        assert log.events == quiet


async def test_any_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every queue pair has a source port of its own; the sockets of old ones are closed."""
    monkeypatch.setattr(senders_module, "_MOST", 8)
    async with await Nic.open(next_address()) as server, await Nic.open(next_address()) as client:
        log = Log(server)
        pd = server.device.alloc_pd()
        listener = listen(server, pd=pd, expose=[server.device.reg_mr(pd, 64, ALL, name="rw")])
        ports = set()
        for number in range(60):
            async with await connect(client, server.address) as connection:
                await connection.write(connection.regions["rw"], bytes([number]))
                assert await connection.read(connection.regions["rw"], 1) == bytes([number])
                ports.add(connection.qp.flow.source_port)
        await log.wait_for(Disconnected, 60)
        assert len(ports) > 8
        for nic in (server, client):
            assert len(nic._senders) == 8
            assert not nic.device.qps
            assert not nic.on_completion
        assert client.on_event == []
        assert len(server.on_event) == 2, "the listener and the log"
        assert not listener._live
        assert not listener._fresh


async def test_many_connections_at_once() -> None:
    async with await Nic.open(next_address()) as server, await Nic.open(next_address()) as client:
        pd = server.device.alloc_pd()
        rw = server.device.reg_mr(pd, 4096, ALL, name="rw")
        listen(server, pd=pd, expose=[rw])
        connections = await asyncio.gather(*(connect(client, server.address) for _ in range(40)))
        await asyncio.gather(
            *(c.write(c.regions["rw"], bytes([i]), offset=i) for i, c in enumerate(connections))
        )
        assert rw.read(0, 40) == bytes(range(40))
        await asyncio.gather(*(c.disconnect() for c in connections))


async def test_descriptors_are_all_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with pair() as both:
        await both.connection.write(both.connection.regions["rw"], b"x")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_what_the_kernel_will_not_send_is_told_once() -> None:
    """From a loopback address there is no way out; for the transport the packet is lost."""
    async with await Nic.open(next_address()) as nic:
        told: list[str] = []
        nic.on_trouble = told.append
        for destination in ("203.0.113.1", "203.0.113.2"):
            qp = ready_qp(nic, destination, timeout=1, retry_cnt=3)
            qp.post_send(SendWR(1, WROpcode.IBV_WR_SEND))
        nic.pump()
        await until(lambda: nic.device.counters["send_error"] == 8)
        assert [sentence.partition(":")[0] for sentence in told] == [
            "cannot send 16 bytes to 203.0.113.1",
            "cannot send 16 bytes to 203.0.113.2",
        ]


async def test_a_kernel_without_room_is_waited_for() -> None:
    """What does not go out at once goes out in order when the socket is writable."""
    async with await Nic.open(next_address()) as nic, stranger(nic.address) as peer:
        qp = ready_qp(nic, peer.address)
        (sender,) = [nic._senders._add(qp.flow.source_port)]
        refusals = iter([True] * 3)
        sock = sender.sock

        class Full:
            """A socket whose buffer is full three times; everything else is the real one's."""

            def __getattr__(self, name: str) -> object:
                return getattr(sock, name)

            def sendto(self, data: bytes, address: object) -> int:
                if next(refusals, False):
                    raise BlockingIOError
                return sock.sendto(data, address)  # type: ignore[arg-type]

        sender.sock = Full()  # type: ignore[assignment]
        for number in range(3):
            qp.post_send(SendWR(number, WROpcode.IBV_WR_SEND))
            nic.pump()
        packets: list[Packet] = [await peer.receive() for _ in range(3)]
        assert [packet.bth.psn for packet in packets] == [PEER_PSN, PEER_PSN + 1, PEER_PSN + 2]
        assert not sender.backlog
        assert not sender.blocked


async def test_a_capture_that_cannot_be_written_ends_and_nothing_else() -> None:
    async with await Nic.open(next_address()) as server, await Nic.open(next_address()) as client:
        errors: list[OSError] = []
        server.capture = EndpointCapture.create("/dev/full", name="x", on_error=errors.append)
        listen(server, expose=[server.device.reg_mr(server.device.alloc_pd(), 64, ALL, name="rw")])
        async with await connect(client, server.address) as connection:
            await connection.write(connection.regions["rw"], b"not captured")
        assert [error.strerror for error in errors] == ["No space left on device"]


async def test_a_long_answer_does_not_keep_others_waiting() -> None:
    """A READ of many packets is sent in turns: timers and other tasks run in between."""
    async with pair(1 << 22) as both:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        tap = tapped(both.server)
        counting = asyncio.create_task(count())
        await both.connection.read(both.connection.regions["rw"], 1 << 22)
        counting.cancel()
        assert len(tap.sent_packets) >= 1024
        assert turns > 4


# ---------------------------------------------------------------------- addresses and MTUs


def test_loopback_takes_the_largest_path_mtu() -> None:
    assert largest_mtu("127.0.0.1", "127.0.0.2") is MTU.IBV_MTU_4096
    assert checked_mtu("127.0.0.1", "127.0.0.2", MTU.IBV_MTU_512) is MTU.IBV_MTU_512


@pytest.mark.parametrize(
    ("link", "most"),
    [
        (65536, 4096),
        (9000, 4096),
        (4096 + 64, 4096),
        (4096 + 63, 2048),
        (1500, 1024),
        (1024 + 64, 1024),
        (1024 + 63, 512),
        (576, 512),
        (320, 256),
    ],
)
def test_the_largest_path_mtu_that_fits_a_link(
    monkeypatch: pytest.MonkeyPatch, link: int, most: int
) -> None:
    """Around the payload: IP 20, UDP 8, BTH 12, RETH 16, ImmDt 4, ICRC 4, as a WRITE may have."""
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: link)
    mtu = largest_mtu("127.0.0.1", "127.0.0.2")
    assert 128 << mtu == most
    if most < 4096:
        with pytest.raises(NetError, match=f"path MTU 4096 is too much for .*: {most} is the most"):
            checked_mtu("127.0.0.1", "127.0.0.2", MTU.IBV_MTU_4096)


def test_a_link_too_small_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: 256)
    with pytest.raises(NetError, match=r"127\.0\.0\.2 has MTU 256: too small"):
        largest_mtu("127.0.0.1", "127.0.0.2")


def test_no_way_is_a_sentence() -> None:
    with pytest.raises(NetError, match=r"no way from 127\.0\.0\.1 to 203\.0\.113\.1: "):
        largest_mtu("127.0.0.1", "203.0.113.1")
    with pytest.raises(NetError, match=r"no way from 203\.0\.113\.1 to 127\.0\.0\.1: "):
        largest_mtu("203.0.113.1", "127.0.0.1")


def test_names_and_addresses() -> None:
    assert resolve("127.0.0.7") == "127.0.0.7"
    assert resolve("::1") == "::1"
    assert resolve("localhost", socket.AF_INET) == "127.0.0.1"
    for bad in ("", "no such name", "300.1.1.1", "a" * 300):
        with pytest.raises(NetError, match="has no"):
            resolve(bad, socket.AF_INET)


def test_the_address_that_a_requester_takes() -> None:
    assert source_address("127.0.0.1") == "127.0.0.2", "the peer has the first"
    assert source_address("127.3.2.1") == "127.0.0.1"
