"""Into ERR: both queues are flushed, in posting order, and nothing leaves any more."""

import pytest

from rocemu.transport import QPAttr, QPStateChange
from rocemu.verbs import QPAttrMask, QPState, SendFlags, WCOpcode, WCStatus, WROpcode
from rocemu.wire import RETH, Op
from tests.transport.fabric import Fabric, Side, connect, packet, statuses

OK, FLUSHED = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_WR_FLUSH_ERR
WRITE, SEND = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_SEND


def to_error(side: Side) -> None:
    side.qp.modify(QPAttr(qp_state=QPState.IBV_QPS_ERR), QPAttrMask.IBV_QP_STATE)


def loaded() -> Fabric:
    """Side a with two sends on the way, one not yet begun, and three receives."""
    fabric = connect(link=lambda sent: (), a_attr={"max_rd_atomic": 1})
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 8), wr_id=1, to=(b.mr, 0), flags=SendFlags(0))
    a.post(WROpcode.IBV_WR_RDMA_READ, a.sge(0, 8), wr_id=2, to=(b.mr, 0))
    a.post(WROpcode.IBV_WR_RDMA_READ, a.sge(0, 8), wr_id=3, to=(b.mr, 0), flags=SendFlags(0))
    for wr_id in (50, 51, 52):
        a.recv(wr_id, a.sge(0, 8))
    fabric.run(0.001)
    assert len(fabric.log) == 2
    return fabric


def test_by_modify() -> None:
    fabric = loaded()
    a = fabric.a
    to_error(a)
    assert [(wc.wr_id, wc.status, wc.opcode) for wc in a.sends()] == [
        (1, FLUSHED, WCOpcode.IBV_WC_RDMA_WRITE),
        (2, FLUSHED, WCOpcode.IBV_WC_RDMA_READ),
        (3, FLUSHED, WCOpcode.IBV_WC_RDMA_READ),
    ]
    assert statuses(a.receives()) == [(50, FLUSHED), (51, FLUSHED), (52, FLUSHED)]
    a.drain_events()
    assert a.events == [QPStateChange(0x11, QPState.IBV_QPS_RTS, QPState.IBV_QPS_ERR)]
    fabric.run()
    assert len(fabric.log) == 2
    assert a.device.next_timer() is None


def test_once_only() -> None:
    fabric = loaded()
    to_error(fabric.a)
    fabric.a.sends()
    fabric.a.receives()
    to_error(fabric.a)
    assert fabric.a.sends() == fabric.a.receives() == []


def test_by_a_fault_of_the_requester_also_the_receives() -> None:
    fabric = loaded()
    fabric.run()
    a = fabric.a
    assert statuses(a.sends()) == [
        (1, WCStatus.IBV_WC_RETRY_EXC_ERR),
        (2, FLUSHED),
        (3, FLUSHED),
    ]
    assert statuses(a.receives()) == [(50, FLUSHED), (51, FLUSHED), (52, FLUSHED)]


def test_by_a_fault_of_the_responder_also_the_sends() -> None:
    fabric = loaded()
    a = fabric.a
    bad = packet(Op.RDMA_WRITE_ONLY, 0x800200, b"x", reth=RETH(0, 0xBAD00, 1))
    fabric.inject(bad, a)
    assert statuses(a.sends()) == [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]
    assert statuses(a.receives()) == [(50, FLUSHED), (51, FLUSHED), (52, FLUSHED)]
    fabric.run()
    assert [s.packet.aeth.syndrome for s in fabric.log if s.packet.aeth] == [0x62]


def test_work_posted_in_error_completes_at_once() -> None:
    fabric = connect()
    a = fabric.a
    to_error(a)
    a.post(WRITE, a.sge(0, 8), wr_id=1, to=(fabric.b.mr, 0), flags=SendFlags(0))
    a.recv(50, a.sge(0, 8))
    a.post(SEND, a.sge(0, 8), wr_id=2)
    assert statuses(a.sends()) == [(1, FLUSHED), (2, FLUSHED)]
    assert statuses(a.receives()) == [(50, FLUSHED)]
    fabric.run()
    assert fabric.log == []


def test_the_receive_of_a_message_half_way_is_flushed_first() -> None:
    fabric = connect()
    b = fabric.b
    for wr_id in (50, 51):
        b.recv(wr_id, b.sge(0, 4096))
    fabric.inject(packet(Op.SEND_FIRST, 0x100, bytes(1024)))
    to_error(b)
    assert statuses(b.receives()) == [(50, FLUSHED), (51, FLUSHED)]


def test_requests_and_answers_are_dropped_in_error() -> None:
    fabric = loaded()
    a = fabric.a
    to_error(a)
    a.device.counters.clear()
    fabric.inject(packet(Op.SEND_ONLY, 0x800200, b"hello"), a)
    fabric.inject(packet(Op.RDMA_READ_RESPONSE_MIDDLE, 0x101, bytes(8)), a)
    fabric.run()
    assert a.device.counters["state"] == 2
    assert len(fabric.log) == 2


@pytest.mark.parametrize("by", ["modify", "fault"])
def test_replies_owed(by: str) -> None:
    """A fault lets them out ahead of its NAK; a modify to ERR silences the pair."""
    fabric = connect()
    b = fabric.b
    fabric.inject(packet(Op.RDMA_WRITE_ONLY, 0x100, b"x", reth=RETH(b.mr.va, b.mr.rkey, 1)))
    fabric.inject(packet(Op.RDMA_READ_REQUEST, 0x101, reth=RETH(b.mr.va, b.mr.rkey, 2048)))
    if by == "fault":
        fabric.inject(packet(Op.SEND_LAST, 0x103, b"x"))
    else:
        to_error(b)
    fabric.run()
    answers = [(0x11, 0x100), (0x0D, 0x101), (0x0F, 0x102), (0x11, 0x103)]
    assert fabric.wire(b) == (answers if by == "fault" else [])
    if by == "fault":
        assert fabric.syndromes(b)[-1] == (0x61, 0x103, 2)


def test_reset_forgets_everything_and_completes_nothing() -> None:
    fabric = loaded()
    a = fabric.a
    a.qp.modify(QPAttr(qp_state=QPState.IBV_QPS_RESET), QPAttrMask.IBV_QP_STATE)
    assert a.sends() == a.receives() == []
    fabric.run()
    assert len(fabric.log) == 2
    assert a.device.next_timer() is None
    a.qp.modify(
        QPAttr(qp_state=QPState.IBV_QPS_INIT),
        QPAttrMask.IBV_QP_STATE
        | QPAttrMask.IBV_QP_PKEY_INDEX
        | QPAttrMask.IBV_QP_PORT
        | QPAttrMask.IBV_QP_ACCESS_FLAGS,
    )
    to_error(a)
    assert a.sends() == a.receives() == []
