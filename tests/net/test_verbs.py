"""The verbs of a connection: what they do at the peer, what they give back, how they fail."""

import asyncio

import pytest

from rocemu.net import CompletionError, RemoteRegion
from rocemu.protection import Cause
from rocemu.transport import SGE, AsyncEvent, QPError, SendWR, Violation
from rocemu.verbs import AsyncEventType, QPState, SendFlags, WCOpcode, WCStatus, WROpcode
from tests.net.pair import ALL, pair, tapped, until


def pattern(size: int) -> bytes:
    return bytes((7 * i + i // 251) % 256 for i in range(size))


@pytest.mark.parametrize("size", [0, 1, 3, 4095, 4096, 4097, 8192, 60000])
async def test_a_write_and_a_read_of_any_length(size: int) -> None:
    data = pattern(size)
    async with pair() as both:
        target = both.connection.regions["rw"]
        completion = await both.connection.write(target, data, offset=100)
        assert completion.status is WCStatus.IBV_WC_SUCCESS
        assert completion.opcode is WCOpcode.IBV_WC_RDMA_WRITE
        assert completion.byte_len == size
        assert both.rw.read(100, size) == data
        assert both.rw.read(0, 100) == bytes(100)
        assert both.rw.read(100 + size, 100) == bytes(100)
        assert await both.connection.read(target, size, offset=100) == data


@pytest.mark.parametrize("size", [0, 1, 4096, 9000])
@pytest.mark.parametrize("imm", [None, 0, 0xDEADBEEF])
async def test_a_send_arrives_at_a_receive(size: int, imm: int | None) -> None:
    async with pair() as both:
        receiving = asyncio.create_task(both.accepted.receive(10000))
        await asyncio.sleep(0)
        await both.connection.send(pattern(size), imm=imm)
        message, completion = await receiving
    assert message == pattern(size)
    assert completion.opcode is WCOpcode.IBV_WC_RECV
    assert completion.byte_len == size
    assert completion.imm_data == imm


async def test_both_sides_send() -> None:
    async with pair() as both:
        receiving = asyncio.create_task(both.connection.receive())
        await asyncio.sleep(0)
        await both.accepted.send(b"from the passive side")
        assert (await receiving)[0] == b"from the passive side"


async def test_a_write_with_immediate_completes_a_receive_and_writes() -> None:
    async with pair() as both:
        receiving = asyncio.create_task(both.accepted.receive())
        await asyncio.sleep(0)
        await both.connection.write(both.connection.regions["rw"], b"seven bytes", imm=7)
        message, completion = await receiving
        assert message == b""
        assert completion.opcode is WCOpcode.IBV_WC_RECV_RDMA_WITH_IMM
        assert completion.imm_data == 7
        assert both.rw.read(0, 11) == b"seven bytes"


async def test_atomics_give_the_value_before() -> None:
    async with pair() as both:
        word = both.connection.regions["rw"]
        both.rw.store64(64, 40)
        assert await both.connection.fetch_add(word, 2, offset=64) == 40
        assert both.rw.load64(64) == 42
        assert await both.connection.compare_swap(word, 41, 1, offset=64) == 42
        assert both.rw.load64(64) == 42
        assert await both.connection.compare_swap(word, 42, 1, offset=64) == 42
        assert both.rw.load64(64) == 1


async def test_messages_to_a_receiver_that_is_late_wait_for_it() -> None:
    """RNR NAKs, and no error: the default is to retry for ever."""
    async with pair() as both:
        tap = tapped(both.server)
        sending = asyncio.create_task(both.connection.send(b"is anybody there"))
        await until(lambda: 0x11 in tap.opcodes())
        naks = [sealed for sealed, _ in tap.sent_packets if sealed[0] == 0x11]
        assert naks[0][12] >> 5 == 1, "an RNR NAK"
        message, _ = await both.accepted.receive()
        assert message == b"is anybody there"
        await sending


async def test_many_under_way_at_once() -> None:
    async with pair() as both:
        target = both.connection.regions["rw"]
        await asyncio.gather(
            *(both.connection.write(target, bytes([i]) * 100, offset=i * 100) for i in range(200))
        )
        assert both.rw.read(0, 20000) == b"".join(bytes([i]) * 100 for i in range(200))
        words = await asyncio.gather(
            *(both.connection.read(target, 100, offset=i * 100) for i in range(200))
        )
        assert words == [bytes([i]) * 100 for i in range(200)]


@pytest.mark.parametrize("cause", ["permission", "bounds", "key", "state", "pd"])
async def test_a_refused_write(cause: str) -> None:
    """The seven steps, through the library, for each cause."""
    async with pair() as both:
        device, target, offset = both.server.device, both.connection.regions["rw"], 0
        if cause == "permission":
            target = both.connection.regions["ro"]
        elif cause == "bounds":
            offset = target.length - 3
        elif cause == "key":
            target = target._replace(rkey=target.rkey ^ 0x10)
        elif cause == "state":
            device.dereg_mr(both.rw)
        else:
            target = RemoteRegion.of(device.reg_mr(device.alloc_pd(), 4096, ALL, name="other"))
        with pytest.raises(CompletionError, match="IBV_WC_REM_ACCESS_ERR") as caught:
            await both.connection.write(target, b"hello", offset=offset)
        assert caught.value.completion.status is WCStatus.IBV_WC_REM_ACCESS_ERR
        (violation,) = both.server_log.of(Violation)
        assert violation.side == "remote"
        assert violation.verdict.causes == (Cause(cause),)
        (event,) = both.server_log.of(AsyncEvent)
        assert event.type is AsyncEventType.IBV_EVENT_QP_ACCESS_ERR
        assert both.accepted.qp.state is QPState.IBV_QPS_ERR
        assert both.connection.qp.state is QPState.IBV_QPS_ERR
        with pytest.raises(CompletionError, match="IBV_WC_WR_FLUSH_ERR"):
            await both.connection.read(target, 8)
        assert both.rw.memory == bytes(both.rw.length)


async def test_a_wrong_lkey_never_reaches_the_wire() -> None:
    async with pair() as both:
        tap = tapped(both.client)
        target = both.connection.regions["rw"]
        wr = SendWR(
            both.connection.next_wr_id(),
            WROpcode.IBV_WR_RDMA_WRITE,
            (SGE(0x1000, 16, 0x1234),),
            remote_addr=target.va,
            rkey=target.rkey,
        )
        completion = await both.connection.post(wr)
        assert completion.status is WCStatus.IBV_WC_LOC_PROT_ERR
        assert tap.sent_packets == []
        (violation,) = both.client_log.of(Violation)
        assert violation.side == "local"
        assert violation.verdict.causes == (Cause.KEY,)
        assert both.accepted.qp.state is QPState.IBV_QPS_RTS, "one side only"


async def test_a_number_under_way_is_not_taken_twice() -> None:
    async with pair() as both:
        wr = SendWR(5, WROpcode.IBV_WR_SEND, (), SendFlags.IBV_SEND_SIGNALED)
        waiting = both.connection.post(wr)  # nobody receives yet
        with pytest.raises(QPError, match="5"):
            both.connection.post(wr)
        numbers = {both.connection.next_wr_id() for _ in range(10)}
        assert len(numbers) == 10
        assert 5 not in numbers
        await both.accepted.receive()
        await waiting


async def test_a_cancelled_verb_leaves_the_connection_whole() -> None:
    """The request is carried out; its memory is given back when it is complete."""
    async with pair() as both:
        target = both.connection.regions["rw"]
        before = len(both.client.device.table.entries())
        writing = asyncio.create_task(both.connection.write(target, b"x" * 50000))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await both.connection.read(target, 50000) == b"x" * 50000
        assert len(both.client.device.table.entries()) == before


async def test_a_cancelled_receive_takes_one_message() -> None:
    async with pair() as both:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(both.accepted.receive(), 0.01)
        await both.connection.send(b"for nobody")
        receiving = asyncio.create_task(both.accepted.receive())
        await asyncio.sleep(0)
        await both.connection.send(b"for somebody")
        assert (await receiving)[0] == b"for somebody"
