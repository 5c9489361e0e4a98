"""Every operation at every path MTU: packets, memory and completions on both ends."""

import pytest

from rocemu.verbs import MTU, SendFlags, WCFlags, WCOpcode, WCStatus, WROpcode, mtu_bytes
from rocemu.wire import Op
from tests.transport.fabric import Fabric, connect

OK = WCStatus.IBV_WC_SUCCESS
WRITE, READ = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_READ
SEND = WROpcode.IBV_WR_SEND
WRITE_IMM, SEND_IMM = WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM, WROpcode.IBV_WR_SEND_WITH_IMM

#: Lengths as (whole MTUs, bytes more), with the payload lengths in MTUs and bytes that result.
SIZES = [(0, 0), (0, 1), (0, 3), (1, -1), (1, 0), (1, 1), (2, -1), (2, 0), (2, 1), (5, 7)]

# operation -> (First, Middle, Last, Only)
PACKETS = {
    SEND: (0x00, 0x01, 0x02, 0x04),
    SEND_IMM: (0x00, 0x01, 0x03, 0x05),
    WRITE: (0x06, 0x07, 0x08, 0x0A),
    WRITE_IMM: (0x06, 0x07, 0x09, 0x0B),
    READ: (0x0D, 0x0E, 0x0F, 0x10),
}
DONE = {
    SEND: WCOpcode.IBV_WC_SEND,
    SEND_IMM: WCOpcode.IBV_WC_SEND,
    WRITE: WCOpcode.IBV_WC_RDMA_WRITE,
    WRITE_IMM: WCOpcode.IBV_WC_RDMA_WRITE,
    READ: WCOpcode.IBV_WC_RDMA_READ,
}


def cut(length: int, mtu: int) -> list[int]:
    """Payload lengths of a message's packets."""
    whole, rest = divmod(length, mtu)
    return [mtu] * whole + [rest] * bool(rest) or [0]


def opcodes(operation: WROpcode, count: int) -> list[int]:
    first, middle, last, only = PACKETS[operation]
    return [only] if count == 1 else [first, *[middle] * (count - 2), last]


@pytest.mark.parametrize("operation", PACKETS, ids=lambda op: op.name)
@pytest.mark.parametrize(("mtus", "more"), SIZES)
@pytest.mark.parametrize("mtu", list(MTU), ids=lambda m: str(mtu_bytes(m)))
def test_message(mtu: MTU, mtus: int, more: int, operation: WROpcode) -> None:
    size = mtu_bytes(mtu)
    length = mtus * size + more
    fabric = connect(mtu=mtu)
    a, b = fabric.a, fabric.b
    data = bytes(i * 7 % 251 for i in range(length))
    sender, taker = (b, a) if operation is READ else (a, b)
    sender.mr.memory[64 : 64 + length] = data
    taker.mr.memory[:] = b"\xee" * taker.mr.length
    b.recv(50, b.sge(32768, length))
    a.post(operation, a.sge(64, length), to=(b.mr, 64), imm_data=0x01020304)
    fabric.run()

    packets = [s.packet for s in fabric.log if s.source == sender.device.address and s.packet]
    payloads = cut(length, size)
    count = len(payloads)
    messages = packets if operation is READ else packets[:count]
    assert [p.bth.opcode for p in messages] == opcodes(operation, count)
    assert [len(p.payload) for p in messages] == payloads
    assert [p.bth.psn for p in messages] == list(range(0x100, 0x100 + count))
    assert b"".join(bytes(p.payload) for p in messages) == data
    # A RETH in the first packet of a WRITE only, an AETH in all responses of a READ but Middle.
    reths = [p.reth is not None for p in messages]
    assert reths == [i == 0 and operation in (WRITE, WRITE_IMM) for i in range(count)]
    aeths = [p.aeth is not None for p in messages]
    assert aeths == [operation is READ and i in (0, count - 1) for i in range(count)]
    if operation is not READ:
        assert messages[-1].bth.ackreq
        assert fabric.syndromes(b) == [(0x1F, 0x100 + count - 1, 1)]
        assert messages[-1].immdt is None or messages[-1].immdt.immediate == 0x01020304

    place = 32768 if operation in (SEND, SEND_IMM) else 64
    assert bytes(taker.mr.memory[place : place + length]) == data
    assert bytes(taker.mr.memory[place + length : place + length + 8]) == b"\xee" * 8
    assert bytes(taker.mr.memory[place - 8 : place]) == b"\xee" * 8
    (done,) = a.sends()
    assert (done.wr_id, done.status, done.opcode, done.byte_len) == (
        1,
        OK,
        DONE[operation],
        length,
    )
    check_receive(fabric, operation, length)


def check_receive(fabric: Fabric, operation: WROpcode, length: int) -> None:
    received = fabric.b.receives()
    if operation in (WRITE, READ):
        assert received == []
        return
    (wc,) = received
    assert (wc.wr_id, wc.status, wc.byte_len, wc.qp_num) == (50, OK, length, 0x11)
    with_imm = operation in (SEND_IMM, WRITE_IMM)
    assert wc.imm_data == (0x01020304 if with_imm else None)
    assert wc.wc_flags == (WCFlags.IBV_WC_WITH_IMM if with_imm else WCFlags(0))
    assert wc.opcode == (
        WCOpcode.IBV_WC_RECV_RDMA_WITH_IMM if operation is WRITE_IMM else WCOpcode.IBV_WC_RECV
    )


def test_the_message_sequence_number_counts_finished_messages_of_any_kind() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    b.recv(50, b.sge(0, 64))
    a.post(WRITE, a.sge(0, 3072), to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), to=(b.mr, 0))
    a.post(SEND, a.sge(0, 8))
    a.post(READ, a.sge(0, 8), to=(b.mr, 0))
    a.post(READ, a.sge(0, 3000), to=(b.mr, 0))
    a.post(WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(0, 8), to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), remote_addr=0, rkey=0xBAD00)
    fabric.run()
    assert [msn for _, _, msn in fabric.syndromes(b)] == [1, 2, 3, 4, 5, 5, 6, 6]
    assert fabric.syndromes(b)[-1] == (0x62, 0x10A, 6)


def test_psns_after_a_read_go_on_behind_its_last_response() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    for length in (0, 1, 1024, 1025, 3072):
        a.post(READ, a.sge(0, length), to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 1), to=(b.mr, 0))
    fabric.run()
    assert [psn for _, psn in fabric.wire(a)] == [0x100, 0x101, 0x102, 0x103, 0x105, 0x108]
    assert len(a.sends()) == 6


def test_empty_messages_ask_for_no_key() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    a.post(WRITE, wr_id=1, remote_addr=0, rkey=0xDEADBEEF)
    a.post(READ, wr_id=2, remote_addr=0, rkey=0xDEADBEEF)
    a.post(WRITE, wr_id=3, to=(b.mr, b.mr.length + 4096))
    fabric.run()
    assert [wc.status for wc in a.sends()] == [OK] * 3
    assert fabric.wire(b) == [(0x11, 0x100), (0x10, 0x101), (0x11, 0x102)]
    assert fabric.syndromes(b) == [(0x1F, 0x100, 1), (0x1F, 0x101, 2), (0x1F, 0x102, 3)]


def test_gather_and_scatter() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    other = a.device.reg_mr(a.pd, bytearray(b"-other-region-" * 100), a.mr.access)
    a.mr.memory[:2000] = b"x" * 2000
    b.recv(50, b.sge(100, 1), b.sge(0, 0), b.sge(500, 1023), b.sge(4000, 5000))
    a.post(SEND, a.sge(0, 700), a.sge(5, 0), a.sge(14, 1400 - 14, other), a.sge(9, 500))
    fabric.run()
    message = b"x" * 700 + b"-other-region-" * 99 + b"x" * 500
    memory = b.mr.memory
    assert bytes(memory[100:101]) + bytes(memory[500:1523]) + bytes(memory[4000:5562]) == message
    assert memory[5562] == 0
    assert [wc.byte_len for wc in b.receives()] == [len(message)]


def test_a_receive_may_be_longer_than_the_message() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    b.mr.memory[:64] = b"\xee" * 64
    b.recv(50, b.sge(0, 64))
    a.mr.memory[:10] = b"ten bytes!"
    a.post(SEND, a.sge(0, 10))
    fabric.run()
    assert bytes(b.mr.memory[:64]) == b"ten bytes!" + b"\xee" * 54
    assert [wc.byte_len for wc in b.receives()] == [10]


def test_inline_data_needs_no_region() -> None:
    fabric = connect(mtu=MTU.IBV_MTU_256)
    a, b = fabric.a, fabric.b
    inline = SendFlags.IBV_SEND_INLINE | SendFlags.IBV_SEND_SIGNALED
    a.post(WRITE, to=(b.mr, 0), flags=inline, inline_data=b"i" * 600)
    fabric.run()
    assert [wc.status for wc in a.sends()] == [OK]
    assert bytes(b.mr.memory[:601]) == b"i" * 600 + b"\0"


@pytest.mark.parametrize("length", [8, 2000])
def test_solicited_is_said_in_the_last_packet(length: int) -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    b.recv(50, b.sge(0, length))
    a.post(SEND, a.sge(0, length), flags=SendFlags.IBV_SEND_SOLICITED)
    fabric.run()
    *before, last = [s.packet.bth.se for s in fabric.log if s.source == a.device.address]
    assert last
    assert not any(before)


def test_unsignaled_requests_complete_in_silence() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    for wr_id, flags in ((1, 0), (2, 0), (3, SendFlags.IBV_SEND_SIGNALED)):
        a.post(WRITE, a.sge(0, 8), wr_id=wr_id, to=(b.mr, 0), flags=flags)
    fabric.run()
    assert [wc.wr_id for wc in a.sends()] == [3]


def test_both_directions_at_once() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    a.mr.memory[:5000] = b"A" * 5000
    b.mr.memory[:5000] = b"B" * 5000
    a.post(WRITE, a.sge(0, 5000), to=(b.mr, 8000))
    b.post(WRITE, b.sge(0, 5000), to=(a.mr, 8000))
    a.post(READ, a.sge(16000, 5000), to=(b.mr, 0))
    fabric.run()
    assert bytes(b.mr.memory[8000:13000]) == b"A" * 5000
    assert bytes(a.mr.memory[8000:13000]) == bytes(a.mr.memory[16000:21000]) == b"B" * 5000
    assert len(a.sends()) == 2
    assert len(b.sends()) == 1
    assert {psn for opcode, psn in fabric.wire(b) if opcode < Op.RDMA_READ_REQUEST} == set(
        range(0x800200, 0x800205)
    )
