"""SQD: what was begun is finished, nothing new is begun, and the end of it is told once."""

import pytest

from rocemu.transport import QPAttr, QPError
from rocemu.verbs import AsyncEventType, QPAttrMask, QPState, WCStatus, WROpcode
from rocemu.wire import RETH, Op
from tests.transport.fabric import Fabric, Side, connect, drop, packet, statuses

OK = WCStatus.IBV_WC_SUCCESS
DRAINED = AsyncEventType.IBV_EVENT_SQ_DRAINED
WRITE, READ = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_READ
STATE = QPAttrMask.IBV_QP_STATE


def move(side: Side, state: QPState, mask: QPAttrMask = STATE, **values: object) -> None:
    side.qp.modify(QPAttr(qp_state=state, **values), mask)  # type: ignore[arg-type]


def half_begun() -> Fabric:
    """Side a has begun two of four requests and is told to drain."""
    fabric = connect(a_attr={"max_rd_atomic": 1}, link=drop(0))
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 3000), wr_id=1, to=(b.mr, 0))
    a.post(READ, a.sge(4096, 8), wr_id=2, to=(b.mr, 0))
    a.post(READ, a.sge(4096, 8), wr_id=3, to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), wr_id=4, to=(b.mr, 0))
    fabric.run(1e-6)
    assert len(fabric.wire(a)) == 4
    move(a, QPState.IBV_QPS_SQD)
    return fabric


def test_begun_requests_finish_even_by_a_retry() -> None:
    fabric = half_begun()
    a = fabric.a
    assert a.async_events() == []
    fabric.run()
    assert statuses(a.sends()) == [(1, OK), (2, OK)]
    assert a.async_events() == [DRAINED]
    assert a.device.next_timer() is None


def test_work_is_queued_and_goes_on_in_rts() -> None:
    fabric = half_begun()
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 8), wr_id=5, to=(b.mr, 0))
    fabric.run()
    assert len(a.sends()) == 2
    move(a, QPState.IBV_QPS_RTS)
    fabric.run()
    assert statuses(a.sends()) == [(3, OK), (4, OK), (5, OK)]
    assert a.async_events() == [DRAINED]


def test_with_nothing_begun_it_is_drained_at_once() -> None:
    fabric = connect()
    a = fabric.a
    move(a, QPState.IBV_QPS_SQD)
    assert a.async_events() == [DRAINED]
    move(a, QPState.IBV_QPS_RTS)
    move(a, QPState.IBV_QPS_SQD)
    assert a.async_events() == [DRAINED, DRAINED]


@pytest.mark.parametrize("state", [QPState.IBV_QPS_RTS, QPState.IBV_QPS_SQD])
def test_while_it_drains_no_move_but_out(state: QPState) -> None:
    fabric = half_begun()
    with pytest.raises(QPError, match="still draining"):
        move(fabric.a, state)
    move(fabric.a, QPState.IBV_QPS_ERR)
    assert [wc.status for wc in fabric.a.sends()] == [WCStatus.IBV_WC_WR_FLUSH_ERR] * 4


def test_requests_of_the_peer_are_answered() -> None:
    fabric = connect()
    b = fabric.b
    move(b, QPState.IBV_QPS_SQD)
    fabric.inject(packet(Op.RDMA_WRITE_ONLY, 0x100, b"x", reth=RETH(b.mr.va, b.mr.rkey, 1)))
    fabric.run()
    assert fabric.syndromes(b) == [(0x1F, 0x100, 1)]


def test_attributes_changed_while_drained() -> None:
    fabric = connect(link=lambda sent: ())
    a, b = fabric.a, fabric.b
    move(a, QPState.IBV_QPS_SQD)
    mask = STATE | QPAttrMask.IBV_QP_RETRY_CNT | QPAttrMask.IBV_QP_TIMEOUT
    move(a, QPState.IBV_QPS_SQD, mask, retry_cnt=2, timeout=10)
    move(a, QPState.IBV_QPS_RTS)
    a.post(WRITE, a.sge(0, 8), to=(b.mr, 0))
    fabric.run()
    assert len(fabric.log) == 3
    assert fabric.log[1].when == pytest.approx(4.096e-6 * 1024)


def test_responder_resources_changed_while_drained() -> None:
    fabric = connect(b_attr={"max_dest_rd_atomic": 1})
    b = fabric.b
    move(b, QPState.IBV_QPS_SQD)
    mask = STATE | QPAttrMask.IBV_QP_MAX_DEST_RD_ATOMIC
    move(b, QPState.IBV_QPS_SQD, mask, max_dest_rd_atomic=2)
    requests = [
        packet(Op.RDMA_READ_REQUEST, psn, reth=RETH(b.mr.va + psn, b.mr.rkey, 8))
        for psn in (0x100, 0x101)
    ]
    for request in requests * 2:
        fabric.inject(request)
        fabric.run()
    assert fabric.wire(b) == [(0x10, 0x100), (0x10, 0x101)] * 2
