"""What draws an Invalid Request: order of opcodes, lengths, rights that the queue pair lacks."""

import pytest

from rocemu.verbs import AccessFlags, AsyncEventType, QPState, WCStatus
from rocemu.wire import RETH, AtomicETH, ImmDt, Op
from tests.transport.fabric import ALL, Fabric, connect, packet, statuses

REQ_ERR = AsyncEventType.IBV_EVENT_QP_REQ_ERR
PMTU = 1024


def reth(fabric: Fabric, length: int) -> RETH:
    return RETH(fabric.b.mr.va, fabric.b.mr.rkey, length)


def refused(fabric: Fabric, psn: int, msn: int = 0) -> None:
    """The last answer is an Invalid Request at ``psn``, told by the event, and nothing moves on."""
    fabric.run()
    assert fabric.syndromes(fabric.b)[-1] == (0x61, psn, msn)
    assert fabric.b.qp.state is QPState.IBV_QPS_ERR
    assert fabric.b.async_events() == [REQ_ERR]
    fabric.log.clear()
    fabric.inject(packet(Op.RDMA_WRITE_ONLY, psn, b"late", reth=reth(fabric, 4)))
    fabric.run()
    assert fabric.log == []


FULL = b"F" * PMTU
#: name -> packets as (opcode, payload, headers); all but the last are in order.
SEQUENCES = {
    "WRITE Middle first": [(Op.RDMA_WRITE_MIDDLE, FULL)],
    "WRITE Last first": [(Op.RDMA_WRITE_LAST, b"x")],
    "WRITE Last with immediate first": [(Op.RDMA_WRITE_LAST_WITH_IMMEDIATE, b"x")],
    "SEND Middle first": [(Op.SEND_MIDDLE, FULL)],
    "SEND Last first": [(Op.SEND_LAST, b"x")],
    "WRITE First, First": [(Op.RDMA_WRITE_FIRST, FULL), (Op.RDMA_WRITE_FIRST, FULL)],
    "WRITE First, Only": [(Op.RDMA_WRITE_FIRST, FULL), (Op.RDMA_WRITE_ONLY, b"x")],
    "WRITE First, SEND Last": [(Op.RDMA_WRITE_FIRST, FULL), (Op.SEND_LAST, b"x")],
    "WRITE First, SEND Only": [(Op.RDMA_WRITE_FIRST, FULL), (Op.SEND_ONLY, b"x")],
    "WRITE First, READ": [(Op.RDMA_WRITE_FIRST, FULL), (Op.RDMA_READ_REQUEST, b"")],
    "WRITE First, FetchAdd": [(Op.RDMA_WRITE_FIRST, FULL), (Op.FETCH_ADD, b"")],
    "after an Only, Last": [(Op.RDMA_WRITE_ONLY, b"x"), (Op.RDMA_WRITE_LAST, b"x")],
    "after a Last, Middle": [
        (Op.RDMA_WRITE_FIRST, FULL),
        (Op.RDMA_WRITE_LAST, FULL),
        (Op.RDMA_WRITE_MIDDLE, FULL),
    ],
}


def headers(fabric: Fabric, opcode: Op, length: int) -> dict[str, object]:
    return {
        "reth": reth(fabric, length),
        "atomiceth": AtomicETH(fabric.b.mr.va, fabric.b.mr.rkey, 1),
        "immdt": ImmDt(1),
    }


@pytest.mark.parametrize("name", SEQUENCES)
def test_opcode_out_of_sequence(name: str) -> None:
    fabric = connect()
    fabric.b.recv(1, fabric.b.sge(0, 4096))
    for i, (opcode, payload) in enumerate(SEQUENCES[name]):
        length = 1 if opcode is Op.RDMA_WRITE_ONLY else 2 * PMTU
        fabric.inject(packet(opcode, 0x100 + i, payload, **headers(fabric, opcode, length)))
    assert fabric.b.qp.responder.msn == (1 if name.startswith("after") else 0)
    refused(fabric, 0x100 + len(SEQUENCES[name]) - 1, fabric.b.qp.responder.msn)
    assert statuses(fabric.b.receives()) == [(1, WCStatus.IBV_WC_WR_FLUSH_ERR)]


@pytest.mark.parametrize("last", [Op.RDMA_WRITE_LAST, Op.SEND_FIRST, Op.RDMA_READ_REQUEST])
def test_out_of_sequence_within_a_send_completes_its_receive(last: Op) -> None:
    fabric = connect()
    b = fabric.b
    for wr_id in (1, 2):
        b.recv(wr_id, b.sge(0, 4096))
    fabric.inject(packet(Op.SEND_FIRST, 0x100, FULL))
    fabric.inject(packet(last, 0x101, FULL, **headers(fabric, last, 8)))
    fabric.run()
    assert fabric.syndromes(b)[-1] == (0x61, 0x101, 0)
    assert b.async_events() == []
    assert statuses(b.receives()) == [
        (1, WCStatus.IBV_WC_REM_INV_REQ_ERR),
        (2, WCStatus.IBV_WC_WR_FLUSH_ERR),
    ]


class TestLengths:
    """First and Middle are full, a Last has 1 to PMTU bytes, and the sum is the RETH's (C52)."""

    @pytest.mark.parametrize("size", [0, 4, PMTU - 4, PMTU + 4])
    def test_write_first_that_is_not_full(self, size: int) -> None:
        fabric = connect()
        fabric.inject(packet(Op.RDMA_WRITE_FIRST, 0x100, bytes(size), reth=reth(fabric, 2 * PMTU)))
        refused(fabric, 0x100)

    @pytest.mark.parametrize("size", [0, PMTU - 4, PMTU + 4])
    def test_write_middle_that_is_not_full(self, size: int) -> None:
        fabric = connect()
        fabric.inject(packet(Op.RDMA_WRITE_FIRST, 0x100, FULL, reth=reth(fabric, 8 * PMTU)))
        fabric.inject(packet(Op.RDMA_WRITE_MIDDLE, 0x101, bytes(size)))
        refused(fabric, 0x101)

    @pytest.mark.parametrize("size", [0, 1, 99, 101, 104, PMTU, PMTU + 4])
    def test_write_last_of_another_length_than_announced(self, size: int) -> None:
        fabric = connect()
        fabric.inject(packet(Op.RDMA_WRITE_FIRST, 0x100, FULL, reth=reth(fabric, PMTU + 100)))
        fabric.inject(packet(Op.RDMA_WRITE_LAST, 0x101, b"L" * size))
        refused(fabric, 0x101)
        assert bytes(fabric.b.mr.memory[PMTU : PMTU + 8]) == bytes(8)

    @pytest.mark.parametrize(
        ("announced", "size"), [(8, 12), (8, 4), (8, 0), (0, 4), (PMTU + 4, PMTU), (2000, 2000)]
    )
    def test_write_only_of_another_length_than_announced(self, announced: int, size: int) -> None:
        fabric = connect()
        fabric.inject(packet(Op.RDMA_WRITE_ONLY, 0x100, b"W" * size, reth=reth(fabric, announced)))
        refused(fabric, 0x100)
        assert bytes(fabric.b.mr.memory[:PMTU]) == bytes(PMTU)

    def test_write_middle_that_goes_past_the_announced_length(self) -> None:
        fabric = connect()
        fabric.inject(packet(Op.RDMA_WRITE_FIRST, 0x100, FULL, reth=reth(fabric, PMTU + 8)))
        fabric.inject(packet(Op.RDMA_WRITE_MIDDLE, 0x101, FULL))
        refused(fabric, 0x101)
        assert bytes(fabric.b.mr.memory[PMTU : PMTU + 8]) == bytes(8)

    @pytest.mark.parametrize("opcode", [Op.RDMA_WRITE_FIRST, Op.RDMA_READ_REQUEST])
    def test_dma_length_over_2_31(self, opcode: Op) -> None:
        fabric = connect()
        payload = FULL if opcode is Op.RDMA_WRITE_FIRST else b""
        fabric.inject(packet(opcode, 0x100, payload, reth=reth(fabric, (1 << 31) + 4)))
        refused(fabric, 0x100)

    def test_dma_length_of_2_31_is_only_out_of_bounds(self) -> None:
        fabric = connect()
        fabric.inject(packet(Op.RDMA_WRITE_FIRST, 0x100, FULL, reth=reth(fabric, 1 << 31)))
        fabric.run()
        assert fabric.syndromes(fabric.b) == [(0x62, 0x100, 0)]

    @pytest.mark.parametrize("opcode", [Op.RDMA_READ_REQUEST, Op.FETCH_ADD, Op.COMPARE_SWAP])
    def test_payload_where_there_is_none(self, opcode: Op) -> None:
        fabric = connect()
        fabric.inject(packet(opcode, 0x100, b"data", **headers(fabric, opcode, 8)))
        refused(fabric, 0x100)

    @pytest.mark.parametrize(
        ("opcode", "size"),
        [(Op.SEND_FIRST, PMTU - 4), (Op.SEND_FIRST, PMTU + 4), (Op.SEND_ONLY, PMTU + 1)],
    )
    def test_send_of_a_wrong_length(self, opcode: Op, size: int) -> None:
        fabric = connect()
        b = fabric.b
        b.recv(1, b.sge(0, 8192))
        fabric.inject(packet(opcode, 0x100, b"S" * size))
        fabric.run()
        assert fabric.syndromes(b) == [(0x61, 0x100, 0)]
        assert statuses(b.receives()) == [(1, WCStatus.IBV_WC_LOC_LEN_ERR)]
        assert b.async_events() == []


class TestRightsOfTheQueuePair:
    """Not enabled on the queue pair is 0x61; not allowed by the region is 0x62."""

    OPERATIONS = (
        (Op.RDMA_WRITE_ONLY, b"x", AccessFlags.IBV_ACCESS_REMOTE_WRITE),
        (Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE, b"x", AccessFlags.IBV_ACCESS_REMOTE_WRITE),
        (Op.RDMA_READ_REQUEST, b"", AccessFlags.IBV_ACCESS_REMOTE_READ),
        (Op.FETCH_ADD, b"", AccessFlags.IBV_ACCESS_REMOTE_ATOMIC),
        (Op.COMPARE_SWAP, b"", AccessFlags.IBV_ACCESS_REMOTE_ATOMIC),
    )

    @pytest.mark.parametrize(("opcode", "payload", "right"), OPERATIONS)
    def test_without_the_right(self, opcode: Op, payload: bytes, right: AccessFlags) -> None:
        fabric = connect(b_attr={"qp_access_flags": ALL & ~right})
        fabric.inject(packet(opcode, 0x100, payload, **headers(fabric, opcode, 1)))
        refused(fabric, 0x100)

    @pytest.mark.parametrize("opcode", [Op.RDMA_WRITE_ONLY, Op.RDMA_READ_REQUEST])
    def test_an_empty_message_needs_it_too(self, opcode: Op) -> None:
        fabric = connect(b_attr={"qp_access_flags": AccessFlags(0)})
        fabric.inject(packet(opcode, 0x100, reth=RETH(0, 0, 0)))
        refused(fabric, 0x100)

    def test_a_send_needs_none(self) -> None:
        fabric = connect(b_attr={"qp_access_flags": AccessFlags(0)})
        fabric.b.recv(1, fabric.b.sge(0, 8))
        fabric.inject(packet(Op.SEND_ONLY, 0x100, b"hello"))
        fabric.run()
        assert statuses(fabric.b.receives()) == [(1, WCStatus.IBV_WC_SUCCESS)]

    @pytest.mark.parametrize("opcode", [Op.RDMA_READ_REQUEST, Op.FETCH_ADD, Op.COMPARE_SWAP])
    def test_no_responder_resources(self, opcode: Op) -> None:
        fabric = connect(b_attr={"max_dest_rd_atomic": 0})
        fabric.inject(packet(opcode, 0x100, **headers(fabric, opcode, 8)))
        refused(fabric, 0x100)


def test_more_reads_at_once_than_there_are_resources() -> None:
    fabric = connect(b_attr={"max_dest_rd_atomic": 2})
    for psn in (0x100, 0x101, 0x102):
        fabric.inject(packet(Op.RDMA_READ_REQUEST, psn, reth=reth(fabric, 8)))
    fabric.run()
    # What was owed before the fault goes out ahead of the NAK.
    assert fabric.wire(fabric.b) == [(0x10, 0x100), (0x10, 0x101), (0x11, 0x102)]
    assert fabric.syndromes(fabric.b)[-1] == (0x61, 0x102, 2)


def test_a_repeated_read_does_not_count_against_the_resources() -> None:
    """The requester had its answer, late, and goes on; its retry is still on the way."""
    fabric = connect(b_attr={"max_dest_rd_atomic": 1})
    request = packet(Op.RDMA_READ_REQUEST, 0x100, reth=reth(fabric, 8))
    fabric.inject(request)
    fabric.run()
    fabric.inject(request)
    fabric.inject(packet(Op.RDMA_READ_REQUEST, 0x101, reth=reth(fabric, 8)))
    fabric.run()
    assert fabric.wire(fabric.b) == [(0x10, 0x100), (0x10, 0x100), (0x10, 0x101)]
    assert fabric.b.qp.state is QPState.IBV_QPS_RTS
