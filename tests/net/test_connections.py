"""Connecting, being refused, and the end of a connection from either side."""

import asyncio

import pytest

from rocemu.net import CompletionError, Connection, NetError, Nic, connect, listen
from rocemu.protection import MemoryRegion
from rocemu.transport import AsyncEvent, Disconnected, QPError
from rocemu.verbs import AccessFlags, QPState
from rocemu.wire import CmRej, CmReq, Packet, RejReason, parse_mad
from tests.net.pair import (
    ALL,
    PATIENCE,
    READ_ONLY,
    Log,
    next_address,
    pair,
    ready_qp,
    stranger,
    tapped,
)

RC_SEND_ONLY, RDMA_WRITE_ONLY, UD_SEND_ONLY = 0x04, 0x0A, 0x64


async def test_the_peer_advertises_its_regions() -> None:
    async with pair() as both:
        assert list(both.connection.regions) == ["rw", "ro"]
        for mr in (both.rw, both.ro):
            told = both.connection.regions[mr.name]
            assert (told.va, told.length, told.rkey) == (mr.va, mr.length, mr.rkey)
            assert told.access == mr.access


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 40, 300])
async def test_regions_that_find_no_room_are_in_a_directory(count: int) -> None:
    async with await Nic.open(next_address()) as server, await Nic.open(next_address()) as client:
        pd = server.device.alloc_pd()
        regions: list[MemoryRegion] = [
            server.device.reg_mr(pd, 64, READ_ONLY, name=f"region-{i}") for i in range(count)
        ]
        listen(server, pd=pd, expose=regions)
        async with await connect(client, server.address) as connection:
            assert list(connection.regions) == [mr.name for mr in regions]
            for mr in regions:
                mr.write(0, mr.name.encode())
                content = await connection.read(connection.regions[mr.name], len(mr.name))
                assert content == mr.name.encode()


async def test_the_directory_follows_what_is_exposed() -> None:
    async with await Nic.open(next_address()) as server, await Nic.open(next_address()) as client:
        pd = server.device.alloc_pd()
        regions = [server.device.reg_mr(pd, 64, READ_ONLY, name=f"r{i}") for i in range(20)]
        listener = listen(server, pd=pd, expose=regions)
        for exposed in (regions, regions[3:], regions[:2], regions[5:]):
            listener.expose(exposed)
            async with await connect(client, server.address) as connection:
                assert list(connection.regions) == [mr.name for mr in exposed]


async def test_a_directory_that_may_not_be_read_is_a_sentence() -> None:
    async with await Nic.open(next_address()) as server, await Nic.open(next_address()) as client:
        pd = server.device.alloc_pd()
        regions = [server.device.reg_mr(pd, 64, READ_ONLY, name=f"r{i}") for i in range(20)]
        listener = listen(server, pd=pd, expose=regions)
        listener.access = AccessFlags.IBV_ACCESS_LOCAL_WRITE
        log = Log(server)
        with pytest.raises(NetError, match=f"directory of {server.address} cannot be read"):
            await connect(client, server.address)
        await log.wait_for(Disconnected)
        assert not server.device.qps
        assert not client.device.qps


async def test_a_directory_of_any_size_is_not_believed() -> None:
    async with await Nic.open(next_address()) as server, await Nic.open(next_address()) as client:
        pd = server.device.alloc_pd()
        regions = [server.device.reg_mr(pd, 64, READ_ONLY, name=f"r{i}") for i in range(20)]
        listener = listen(server, pd=pd, expose=regions)
        honest = listener.advertisement()
        place = honest.rindex(b"(directory)") - 23 + 8  # its length, in front of key and flags
        lie = honest[:place] + (1 << 60).to_bytes(8, "big") + honest[place + 8 :]
        listener.advertisement = lambda: lie  # type: ignore[method-assign]
        with pytest.raises(NetError, match=f"directory of {1 << 60} bytes"):
            await connect(client, server.address)


async def test_nobody_listens_on_that_cm_port() -> None:
    async with await Nic.open(next_address()) as server, await Nic.open(next_address()) as client:
        listen(server, 1000)
        with pytest.raises(NetError) as caught:
            await connect(client, server.address, 1001)
        sentence = f"{server.address} rejects the connection: nobody listens on CM port 1001 there"
        assert str(caught.value) == sentence
        assert not client.device.qps


async def test_a_closed_udp_port_is_noticed_at_once() -> None:
    """By the ICMP error that one REQ draws: nothing is sent a second time."""
    async with await Nic.open(next_address()) as client:
        tap, nobody = tapped(client), next_address()
        with pytest.raises(NetError, match=f"nobody listens on UDP 4791 at {nobody}"):
            await connect(client, nobody)
        assert tap.opcodes() == [UD_SEND_ONLY]
        assert client.device.next_timer() is None, "nothing is waited for any more"


async def test_a_peer_that_dies_is_noticed_by_the_next_packet() -> None:
    async with await Nic.open(next_address()) as client:
        server = await Nic.open(next_address())
        listen(server, expose=[server.device.reg_mr(server.device.alloc_pd(), 64, ALL, name="rw")])
        connection = await connect(client, server.address)
        await server.close()  # no DREQ: as if it were killed
        tap = tapped(client)
        with pytest.raises(CompletionError, match="IBV_WC_RETRY_EXC_ERR") as caught:
            await connection.write(connection.regions["rw"], b"are you there")
        assert caught.value.completion.vendor_err, "it says why"
        assert tap.opcodes() == [RDMA_WRITE_ONLY], "no retry"
        assert connection.qp.state is QPState.IBV_QPS_ERR
        await connection.disconnect()
        assert tap.opcodes() == [RDMA_WRITE_ONLY, UD_SEND_ONLY], "one DREQ, and an ICMP error again"


async def test_a_connection_that_is_given_up_is_taken_back() -> None:
    async with await Nic.open(next_address()) as client, stranger(client.address) as peer:
        connecting = asyncio.create_task(connect(client, peer.address))
        request = parse_mad(bytes((await peer.receive()).payload))
        assert isinstance(request, CmReq)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        rejection = parse_mad(bytes((await peer.receive()).payload))
        assert isinstance(rejection, CmRej)
        assert rejection.reason == RejReason.TIMEOUT
        assert rejection.local_comm_id == request.local_comm_id
        assert not client.device.qps


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_a_port_that_is_none(port: int) -> None:
    async with await Nic.open(next_address()) as client:
        with pytest.raises(ValueError, match="port"):
            await connect(client, next_address(), port)
        assert not client.device.qps


async def test_a_name_without_an_address() -> None:
    async with await Nic.open(next_address()) as client:
        with pytest.raises(NetError, match="'no such name' has no IPv4 address"):
            await connect(client, "no such name")
        with pytest.raises(NetError, match="'::1' has no IPv4 address"):
            await connect(client, "::1")


@pytest.mark.parametrize("side", ["active", "passive", "both"])
async def test_either_side_disconnects(side: str) -> None:
    async with pair() as both:
        ends = {
            "active": [both.connection],
            "passive": [both.accepted],
            "both": [both.connection, both.accepted],
        }[side]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(end.disconnect() for end in ends))
            await both.connection.closed.wait()
            await both.accepted.closed.wait()
        for log in (both.server_log, both.client_log):
            await log.wait_for(Disconnected)
        assert not both.server_log.of(AsyncEvent), "a disconnect is no fault"
        assert not both.server.device.qps
        if side == "passive":
            assert both.connection.qp.state is QPState.IBV_QPS_ERR
            with pytest.raises(CompletionError, match="IBV_WC_WR_FLUSH_ERR"):
                await both.connection.send(b"too late")
        else:
            with pytest.raises(QPError, match="over"):
                await both.connection.send(b"too late")
        with pytest.raises(QPError, match="over"):
            await both.accepted.receive()


@pytest.mark.parametrize("side", ["active", "passive"])
async def test_who_waits_for_a_message_hears_of_the_end(side: str) -> None:
    async with pair() as both:
        waiting = [
            asyncio.create_task(end.receive()) for end in (both.connection, both.accepted) * 2
        ]
        await asyncio.sleep(0)
        await (both.connection if side == "active" else both.accepted).disconnect()
        async with asyncio.timeout(PATIENCE):
            for task in waiting:
                with pytest.raises(CompletionError, match="IBV_WC_WR_FLUSH_ERR"):
                    await task
        regions = [entry.name for entry in both.server.device.table.entries() if entry.mr]
        assert sorted(regions) == ["ro", "ro", "rw", "rw"], "both keys of each, no buffers"


async def test_closing_a_nic_flushes_what_is_posted() -> None:
    async with pair() as both:
        waiting = asyncio.create_task(both.accepted.receive())
        await asyncio.sleep(0)
        await both.server.close()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(CompletionError, match="IBV_WC_WR_FLUSH_ERR"):
                await waiting
            await both.accepted.disconnect()


async def test_who_comes_and_goes_unseen_is_not_handed_out() -> None:
    """The listener keeps no connection that is over, whether or not somebody iterates."""
    async with pair() as both:
        for _ in range(3):
            async with await connect(both.client, both.server.address):
                pass
        await both.server_log.wait_for(Disconnected, 3)
        async with await connect(both.client, both.server.address) as late:
            accepted = await anext(both.listener)
            assert accepted.qp.attr.dest_qp_num == late.qp.qp_num


async def test_a_request_on_a_queue_pair_made_by_hand() -> None:
    """Without a CM: the numbers are agreed by other means."""
    async with await Nic.open(next_address()) as nic, stranger(nic.address) as peer:
        connection = Connection(nic, ready_qp(nic, peer.address))
        sending = asyncio.create_task(connection.send(b"0123456789abcdef"))
        packet: Packet = await peer.receive()
        assert packet.bth.opcode == RC_SEND_ONLY
        assert bytes(packet.payload) == b"0123456789abcdef"
        await connection.disconnect()
        with pytest.raises(CompletionError, match="IBV_WC_WR_FLUSH_ERR"):
            await sending
