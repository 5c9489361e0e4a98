"""Full queues, completion queues that overrun, and numbers that fit in no header."""

import pytest

from rocemu.transport import SGE, QPCap, QPError, QPInitAttr, QPStateChange
from rocemu.verbs import AsyncEventType, QPState, SendFlags, WCStatus, WROpcode
from rocemu.wire import AETH, Op
from tests.transport.fabric import A_ADDRESS, Fabric, Side, connect, packet, statuses

WRITE, SEND = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_SEND
READ, ADD = WROpcode.IBV_WR_RDMA_READ, WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD
CQ_ERR, QP_FATAL = AsyncEventType.IBV_EVENT_CQ_ERR, AsyncEventType.IBV_EVENT_QP_FATAL


def with_cap(**cap: int) -> Fabric:
    fabric = connect(link=lambda sent: ())
    for side in (fabric.a, fabric.b):
        side.qp.init_attr = QPInitAttr(side.send_cq, side.recv_cq, cap=QPCap(**cap))
    return fabric


def test_a_full_send_queue() -> None:
    fabric = with_cap(max_send_wr=2)
    a = fabric.a
    a.post(SEND)
    a.post(SEND)
    with pytest.raises(QPError, match="send queue full: max_send_wr is 2"):
        a.post(SEND)


def test_a_full_receive_queue() -> None:
    fabric = with_cap(max_recv_wr=1)
    fabric.b.recv(1)
    with pytest.raises(QPError, match="receive queue full: max_recv_wr is 1"):
        fabric.b.recv(2)


def test_too_many_elements() -> None:
    fabric = with_cap(max_send_sge=1, max_recv_sge=1)
    a = fabric.a
    with pytest.raises(QPError, match="2 elements: max_send_sge is 1"):
        a.post(SEND, a.sge(0, 1), a.sge(0, 1))
    with pytest.raises(QPError, match="2 elements: max_recv_sge is 1"):
        a.recv(1, a.sge(0, 1), a.sge(0, 1))


def test_an_operation_that_is_none() -> None:
    a = connect().a
    with pytest.raises(QPError, match="99: not an operation"):
        a.post(99)  # type: ignore[arg-type]


@pytest.mark.parametrize("opcode", [READ, ADD])
def test_inline_has_no_meaning_where_nothing_is_sent(opcode: WROpcode) -> None:
    a = connect().a
    with pytest.raises(QPError, match="nothing to send inline"):
        a.post(opcode, flags=SendFlags.IBV_SEND_INLINE)


def test_too_much_inline() -> None:
    a = connect().a
    with pytest.raises(QPError, match="4097 bytes inline: most is 4096"):
        a.post(SEND, flags=SendFlags.IBV_SEND_INLINE, inline_data=bytes(4097))


@pytest.mark.parametrize("opcode", [READ, ADD])
def test_no_reads_with_max_rd_atomic_0(opcode: WROpcode) -> None:
    a = connect(a_attr={"max_rd_atomic": 0}).a
    with pytest.raises(QPError, match="max_rd_atomic of the QP is 0"):
        a.post(opcode, a.sge(0, 8))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remote_addr", 1 << 64),
        ("remote_addr", -1),
        ("rkey", 1 << 32),
        ("imm_data", 1 << 32),
        ("compare_add", 1 << 64),
        ("swap", -1),
    ],
)
def test_a_number_too_wide_for_its_field(field: str, value: int) -> None:
    fabric = connect()
    a = fabric.a
    with pytest.raises(QPError, match=field):
        a.post(ADD, a.sge(0, 8), **{field: value})
    fabric.run()
    assert fabric.log == []
    assert a.sends() == []


@pytest.mark.parametrize(
    "sge", [SGE(-1, 8, 0), SGE(1 << 64, 8, 0), SGE(0, -8, 0), SGE(0, 8, 1 << 32)]
)
def test_an_element_with_such_a_number(sge: SGE) -> None:
    a = connect().a
    with pytest.raises(QPError, match="not an unsigned number"):
        a.post(SEND, sge)
    with pytest.raises(QPError, match="not an unsigned number"):
        a.recv(1, sge)


class TestOverrun:
    """Class G: the completion is lost, the CQ is broken, and so is every pair that uses it."""

    def test_of_the_receive_queue(self) -> None:
        fabric = connect()
        b = fabric.b
        b.recv_cq.depth = 1
        for wr_id in (50, 51, 52):
            b.recv(wr_id)
        fabric.inject(packet(Op.SEND_ONLY, 0x100))
        fabric.inject(packet(Op.SEND_ONLY, 0x101))
        fabric.run()
        # No NAK for the second, and no ACK: its receive could not be completed.
        assert fabric.syndromes(b) == [(0x1F, 0x100, 1)]
        assert b.async_events() == [CQ_ERR, QP_FATAL]
        assert QPStateChange(0x11, QPState.IBV_QPS_RTS, QPState.IBV_QPS_ERR) in b.events
        assert statuses(b.receives()) == [(50, WCStatus.IBV_WC_SUCCESS)]
        assert b.recv_cq.overrun

    def test_of_the_send_queue(self) -> None:
        fabric = connect()
        a, b = fabric.a, fabric.b
        a.send_cq.depth = 2
        a.recv(60)
        for wr_id in range(4):
            a.post(WRITE, a.sge(0, 8), wr_id=wr_id, to=(b.mr, 0))
        fabric.run()
        assert a.async_events() == [CQ_ERR, QP_FATAL]
        assert a.qp.state is QPState.IBV_QPS_ERR
        assert statuses(a.sends()) == [(0, WCStatus.IBV_WC_SUCCESS), (1, WCStatus.IBV_WC_SUCCESS)]
        assert statuses(a.receives()) == [(60, WCStatus.IBV_WC_WR_FLUSH_ERR)]
        assert a.device.next_timer() is None

    def test_by_an_answer_that_completes_several(self) -> None:
        fabric = connect(link=lambda sent: ())
        a, b = fabric.a, fabric.b
        a.send_cq.depth = 0
        a.post(WRITE, a.sge(0, 8), to=(b.mr, 0))
        a.post(READ, a.sge(0, 8), to=(b.mr, 0))
        fabric.run(0.001)
        response = packet(Op.RDMA_READ_RESPONSE_ONLY, 0x101, bytes(8), aeth=AETH(0x1F, 2))
        fabric.inject(response, a)
        assert a.async_events() == [CQ_ERR, QP_FATAL]
        assert a.device.next_timer() is None

    def test_while_flushing(self) -> None:
        fabric = connect(link=lambda sent: (), a_attr={"retry_cnt": 0})
        a = fabric.a
        a.send_cq.depth = 2
        for wr_id in range(3):
            a.post(SEND, wr_id=wr_id)
        fabric.run()
        assert a.async_events() == [CQ_ERR]
        assert [wc.wr_id for wc in a.sends()] == [0, 1]

    def test_other_pairs_of_the_queue(self) -> None:
        fabric = connect()
        b = fabric.b
        pairs = [
            b.device.create_qp(b.pd, QPInitAttr(b.device.create_cq(), b.recv_cq)),
            b.device.create_qp(b.pd, QPInitAttr(b.device.create_cq(), b.device.create_cq())),
        ]
        for qp in pairs:
            qp.state = QPState.IBV_QPS_RTS
        unused = b.device.create_qp(b.pd, QPInitAttr(b.recv_cq, b.recv_cq))
        b.recv_cq.depth = 0
        b.recv(50)
        fabric.inject(packet(Op.SEND_ONLY, 0x100))
        assert [qp.state for qp in (b.qp, *pairs, unused)] == [
            QPState.IBV_QPS_ERR,
            QPState.IBV_QPS_ERR,
            QPState.IBV_QPS_RTS,
            QPState.IBV_QPS_RESET,
        ]
        assert b.async_events() == [CQ_ERR, QP_FATAL, QP_FATAL]


def test_a_pair_that_is_destroyed() -> None:
    side = Side(A_ADDRESS, 1)
    users = side.pd.users
    qp = side.device.create_qp(side.pd, QPInitAttr(side.send_cq, side.recv_cq))
    assert side.pd.users == users + 1
    side.device.destroy_qp(qp)
    assert side.pd.users == users
    assert qp.qp_num not in side.device.qps
    again = side.device.create_qp(side.pd, QPInitAttr(side.send_cq, side.recv_cq))
    assert again.qp_num != qp.qp_num


def test_numbers_that_are_taken_are_passed_over() -> None:
    side = Side(A_ADDRESS, 1)
    init = QPInitAttr(side.send_cq, side.recv_cq)
    side.device.create_qp(side.pd, init, 0x12)
    assert side.device.create_qp(side.pd, init).qp_num == 0x13
