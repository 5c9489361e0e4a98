"""Whatever comes to UDP 4791: dropped, counted, told as a Drop, never answered, never fatal."""

import asyncio
import random
from collections.abc import Callable

import pytest

from rocemu.net import IcrcPolicy, Nic, connect, listen
from rocemu.transport import Drop
from rocemu.verbs import QPState
from rocemu.wire import BTH, DETH, RETH, CmReq, Packet, build, build_mad, seal
from tests.net.pair import ALL, next_address, served, stranger, tapped, until, write_packet

RC_ACKNOWLEDGE, UD_SEND_ONLY = 0x11, 0x64
UNKNOWN_QPN = 0xABCDEF


async def test_runts() -> None:
    """Case C06: 0 to 15 bytes, then a request that is answered."""
    async with served() as (nic, peer, qp, mr, log):
        for size in range(16):
            peer.send(bytes([0x0A] * size))
        drops = await log.wait_for(Drop, 16)
        assert [drop.reason for drop in drops] == ["short"] * 16
        assert [drop.detail.split()[0] for drop in drops] == [str(size) for size in range(16)]
        assert {drop.datagram.source for drop in drops} == {peer.address}
        assert nic.device.counters["short"] == 16
        peer.send_packet(write_packet(qp, mr, b"the next good one"))
        answer = await peer.receive()
        assert (answer.bth.opcode, answer.bth.psn) == (RC_ACKNOWLEDGE, 100)
        assert mr.read(0, 17) == b"the next good one"


async def test_the_datagram_that_crashed_a_kernel() -> None:
    """Case C08: 48 bytes, opcode 0xff, QPN 0xffffff."""
    async with served() as (_nic, peer, qp, mr, log):
        peer.send(seal(bytes.fromhex("ff40ffff 00ffffff 00000000") + bytes(32), peer.flow))
        (drop,) = await log.wait_for(Drop)
        assert drop.reason == "opcode"
        assert drop.bth is not None
        assert (drop.bth.opcode, drop.bth.dest_qp) == (0xFF, 0xFFFFFF)
        peer.send_packet(write_packet(qp, mr, b"still here"))
        assert (await peer.receive()).bth.psn == 100


async def test_every_opcode_of_other_transports_and_to_nobody() -> None:
    """Case C08: all opcodes, five sizes, a good ICRC; none may draw an answer."""
    async with served() as (nic, peer, qp, mr, log):
        sent = 0
        for opcode in range(256):
            for qpn in (qp.qp_num, UNKNOWN_QPN, 0xFFFFFF):
                if qpn == qp.qp_num and opcode < 0x20:
                    continue  # its own transport: the transport's tests
                for size in (16, 20, 28, 48, 60):
                    head = BTH(opcode, qpn, 100, ackreq=True).pack()
                    peer.send(seal((head + bytes(48))[: size - 4], peer.flow))
                    sent += 1
            await until(lambda: nic.device.counters["received"] == sent)  # noqa: B023 - at once
        cnps = nic.device.counters["cnp"]
        assert len(log.of(Drop)) == sent - cnps
        assert 0 < cnps <= 5, "congestion notifications are taken, and nothing else"
        assert qp.state is QPState.IBV_QPS_RTS
        peer.send_packet(write_packet(qp, mr, b"the first to be answered"))
        assert (await peer.receive()).bth.psn == 100


def _tver(packet: bytes) -> bytes:
    return packet[:1] + bytes([packet[1] | 3]) + packet[2:]


def _pad(packet: bytes) -> bytes:
    """A READ request has no payload, so nothing can be padded."""
    return build(Packet(BTH(0x0C, 0, 0), reth=RETH(0, 0, 0))).replace(b"\x0c\x00", b"\x0c\x30", 1)


MALFORMED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "cut in the RETH": ("short", lambda packet: packet[:20]),
    "pad longer than the packet": ("short", _pad),
    "three bytes too many": ("pad", lambda packet: packet + bytes(3)),
    "transport version 3": ("tver", _tver),
    "P_Key of a partition": ("pkey", lambda packet: packet[:2] + b"\x80\x01" + packet[4:]),
    "queue pair 0": ("qpn", lambda packet: packet[:5] + bytes(3) + packet[8:]),
    "unknown queue pair": ("qpn", lambda packet: packet[:5] + b"\xab\xcd\xef" + packet[8:]),
    "UC": ("transport", lambda packet: b"\x2a" + packet[1:]),
    "reserved opcode of UC": ("opcode", lambda packet: b"\x3f" + packet[1:]),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_packet(what: str) -> None:
    reason, spoil = MALFORMED[what]
    async with served() as (nic, peer, qp, mr, log):
        tap = tapped(nic)
        peer.send(seal(spoil(build(write_packet(qp, mr, b"spoilt"))), peer.flow))
        (drop,) = await log.wait_for(Drop)
        assert drop.reason == reason
        assert nic.device.counters[reason] == 1
        peer.send_packet(write_packet(qp, mr, b"unspoilt"))
        assert (await peer.receive()).bth.psn == 100
        assert mr.read(0, 8) == b"unspoilt"
        comments = [comment for _, _, comment in tap.received_packets]
        assert comments == [f"dropped: {reason}: {drop.detail}", None], "the capture says why"


async def test_a_request_from_another_address_than_the_peers() -> None:
    async with served() as (nic, _peer, qp, mr, log), stranger(nic.address) as other:
        other.send_packet(write_packet(qp, mr, b"an intruder"))
        (drop,) = await log.wait_for(Drop)
        assert (drop.reason, drop.datagram.source) == ("address", other.address)
        assert not any(mr.memory)


@pytest.mark.parametrize(
    ("policy", "written", "counters"),
    [
        (IcrcPolicy.VERIFY, False, {"icrc_bad": 1, "icrc": 1}),
        (IcrcPolicy.COUNT, True, {"icrc_bad": 1, "received": 1}),
        (IcrcPolicy.IGNORE, True, {"received": 1}),
    ],
)
async def test_a_write_without_an_icrc(
    policy: IcrcPolicy, written: bool, counters: dict[str, int]
) -> None:
    """Case C70: switch programmers cannot compute one."""
    async with served(policy) as (nic, peer, qp, mr, log):
        tap = tapped(nic)
        peer.send(build(write_packet(qp, mr, b"no ICRC")) + bytes(4))
        if written:
            assert (await peer.receive()).bth.opcode == RC_ACKNOWLEDGE
        else:
            (drop,) = await log.wait_for(Drop)
            assert (drop.reason, drop.bth and drop.bth.psn) == ("icrc", 100)
        assert (mr.read(0, 7) == b"no ICRC") is written
        assert nic.device.counters == counters
        (datagram, _, comment) = tap.received_packets[0]
        assert datagram[-4:] == bytes(4), "the capture keeps what came"
        assert (comment is None) is written


@pytest.mark.parametrize("policy", list(IcrcPolicy))
async def test_a_right_icrc_passes_under_every_policy(policy: IcrcPolicy) -> None:
    async with served(policy) as (nic, peer, qp, mr, _):
        peer.send_packet(write_packet(qp, mr, b"right"))
        assert (await peer.receive()).bth.opcode == RC_ACKNOWLEDGE
        assert nic.device.counters["icrc_bad"] == 0
        assert nic.device.counters["icrc_known_id"] == (policy is not IcrcPolicy.IGNORE)


async def test_an_ip_id_that_the_socket_does_not_show_is_solved_for() -> None:
    """As from a NIC that counts its IDs; here the kernel sends 0, and the ICRC says 0x1234."""
    async with served() as (nic, peer, qp, mr, _):
        peer.send(seal(build(write_packet(qp, mr, b"solved")), peer.flow, ip_id=0x1234))
        assert (await peer.receive()).bth.opcode == RC_ACKNOWLEDGE
        assert nic.device.counters["icrc_solved"] == 1


async def test_every_bit_of_a_packet_is_covered() -> None:
    """But for what the ICRC masks in the BTH (byte 4), and once in 65,536 by the unseen IP ID."""
    async with served() as (_nic, peer, qp, mr, log):
        good = seal(build(write_packet(qp, mr, b"0123")), peer.flow)
        for bit in range(len(good) * 8):
            if bit // 8 != 4:
                spoilt = bytearray(good)
                spoilt[bit // 8] ^= 0x80 >> bit % 8
                peer.send(bytes(spoilt))
        drops = await log.wait_for(Drop, len(good) * 8 - 8)
        assert {drop.reason for drop in drops} == {"icrc"}
        assert qp.state is QPState.IBV_QPS_RTS
        peer.send(good)
        assert (await peer.receive()).bth.psn == 100


def _mad(payload: bytes, qkey: int = 0x80010000) -> Packet:
    return Packet(BTH(UD_SEND_ONLY, 1, 0), payload, deth=DETH(qkey, 1))


async def test_bad_connection_messages() -> None:
    async with served() as (nic, peer, qp, mr, log):
        nic.device.cm.listen(18515)
        for size in (0, 4, 24, 252, 260, 1024):
            peer.send_packet(_mad(bytes(size)))
        peer.send_packet(_mad(b"\xff" * 256))
        await until(lambda: nic.device.cm.counters["mad"] == 7)
        peer.send_packet(_mad(build_mad(CmReq(transaction_id=1)), qkey=1))
        (drop,) = await log.wait_for(Drop)
        assert drop.reason == "qkey"
        peer.send_packet(write_packet(qp, mr, b"on and on"))
        assert (await peer.receive()).bth.psn == 100


async def test_a_bug_of_ours_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Were there a packet that makes our code raise, it would be shown, and the next one taken."""

    def broken(event: object) -> None:
        nic.on_event.remove(broken)
        raise RuntimeError("a bug")

    async with served() as (nic, peer, qp, mr, _):
        nic.on_event.append(broken)
        peer.send(b"short")
        peer.send_packet(write_packet(qp, mr, b"after the bug"))
        assert (await peer.receive()).bth.psn == 100
    assert "a bug" in caplog.text


async def test_a_datagram_larger_than_any_packet_is_dropped() -> None:
    async with served() as (_nic, peer, qp, mr, log):
        peer.send(bytes(20000))
        (drop,) = await log.wait_for(Drop)
        assert drop.reason == "icrc"
        peer.send_packet(write_packet(qp, mr, b"small"))
        assert (await peer.receive()).bth.psn == 100


async def test_spoilt_connection_requests() -> None:
    """A REQ with any field spoilt: at worst a REJ, and the next client is served."""
    bugs: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: bugs.append(context))
    async with await Nic.open(next_address()) as client, stranger(client.address) as peer:
        connecting = asyncio.create_task(connect(client, peer.address))
        request = bytes((await peer.receive()).payload)
        connecting.cancel()
        await asyncio.wait([connecting])
    rng = random.Random(4791)
    async with await Nic.open(next_address()) as server, stranger(server.address) as peer:
        listen(server, expose=[server.device.reg_mr(server.device.alloc_pd(), 64, ALL, name="rw")])
        for number in range(600):
            mad = bytearray(request)
            for _ in range(rng.randrange(1, 4)):
                # The header stays, else nothing but the header would be tested.
                mad[rng.randrange(24, 256)] = rng.randrange(256)
            peer.send_packet(_mad(bytes(mad)))
            if number % 50 == 49:
                seen = number + 1
                await until(lambda: server.device.counters["received"] >= seen)  # noqa: B023
        assert bugs == []
        async with (
            await Nic.open(next_address()) as client,
            await connect(client, server.address) as connection,
        ):
            await connection.write(connection.regions["rw"], b"served")
