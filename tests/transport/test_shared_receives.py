"""Shared receive queues: who takes from them, the limit event, and what ERR leaves in them."""

import pytest

from rocemu.transport import AsyncEvent, QPError, QPInitAttr, RecvWR, SRQEvent
from rocemu.verbs import AsyncEventType, QPState, WCStatus, WROpcode
from tests.transport.fabric import Fabric, connect, statuses

SEND = WROpcode.IBV_WR_SEND
LIMIT = AsyncEventType.IBV_EVENT_SRQ_LIMIT_REACHED
LAST = AsyncEventType.IBV_EVENT_QP_LAST_WQE_REACHED


def limits(fabric: Fabric) -> list[AsyncEventType]:
    fabric.b.drain_events()
    return [event.type for event in fabric.b.events if isinstance(event, SRQEvent)]


def post(fabric: Fabric, *numbers: int) -> None:
    assert fabric.b.srq is not None
    for number in numbers:
        fabric.b.srq.post_recv(RecvWR(number, (fabric.b.sge(1024 * number, 1024),)))


def test_sends_take_receives_of_the_srq_in_order() -> None:
    fabric = connect(with_srq=True)
    post(fabric, 1, 2)
    fabric.a.mr.write(0, b"first, then second")
    fabric.a.post(SEND, fabric.a.sge(0, 5), wr_id=1)
    fabric.a.post(SEND, fabric.a.sge(12, 6), wr_id=2)
    fabric.run()
    assert statuses(fabric.b.receives()) == [
        (1, WCStatus.IBV_WC_SUCCESS),
        (2, WCStatus.IBV_WC_SUCCESS),
    ]
    assert fabric.b.mr.read(1024, 5) == b"first"
    assert fabric.b.mr.read(2048, 6) == b"second"


def test_two_queue_pairs_share_one_queue() -> None:
    fabric = connect(with_srq=True)
    b = fabric.b
    other = b.device.create_qp(b.pd, QPInitAttr(b.send_cq, b.recv_cq, srq=b.srq))
    post(fabric, 1)
    assert other.responder.take_receive() == RecvWR(1, (b.sge(1024, 1024),))
    assert b.qp.responder.take_receive() is None


def test_an_empty_srq_draws_rnr_naks() -> None:
    fabric = connect(with_srq=True, a_attr={"rnr_retry": 0})
    fabric.a.post(SEND, fabric.a.sge(0, 8))
    fabric.run()
    assert statuses(fabric.a.sends()) == [(1, WCStatus.IBV_WC_RNR_RETRY_EXC_ERR)]
    assert fabric.b.qp.state is QPState.IBV_QPS_RTS


def test_the_limit_is_told_once() -> None:
    fabric = connect(with_srq=True)
    srq = fabric.b.srq
    assert srq is not None
    post(fabric, 1, 2, 3)
    srq.arm(2)
    for wr_id in (1, 2, 3):
        fabric.a.post(SEND, fabric.a.sge(0, 8), wr_id=wr_id)
    fabric.run()
    assert limits(fabric) == [LIMIT]
    assert srq.limit == 0


def test_a_limit_that_is_reached_already_is_told_at_once() -> None:
    fabric = connect(with_srq=True)
    assert fabric.b.srq is not None
    post(fabric, 1)
    fabric.b.srq.arm(2)
    assert limits(fabric) == [LIMIT]


def test_err_leaves_the_srq_alone_and_tells_that_the_last_receive_is_done() -> None:
    fabric = connect(with_srq=True)
    assert fabric.b.srq is not None
    post(fabric, 1)
    fabric.a.post(WROpcode.IBV_WR_RDMA_WRITE, fabric.a.sge(0, 8), remote_addr=0, rkey=0xBAD00)
    fabric.run()
    assert fabric.b.receives() == []
    assert len(fabric.b.srq) == 1
    assert fabric.b.async_events()[-1] is LAST


def test_a_message_under_way_is_flushed_before_that_is_told() -> None:
    fabric = connect(
        with_srq=True, link=lambda sent: (1e-6,) if sent.packet.bth.psn < 0x101 else ()
    )
    post(fabric, 1)
    fabric.a.post(SEND, fabric.a.sge(0, 1500))
    fabric.run(limit=1e-4)
    fabric.b.qp.enter_error()
    assert statuses(fabric.b.receives()) == [(1, WCStatus.IBV_WC_WR_FLUSH_ERR)]
    fabric.b.drain_events()
    assert AsyncEvent(LAST, fabric.b.qp.qp_num) in fabric.b.events


def test_receives_are_posted_to_the_srq_alone() -> None:
    fabric = connect(with_srq=True)
    with pytest.raises(QPError, match="post them there"):
        fabric.b.recv(1)


def test_sizes_of_an_srq() -> None:
    fabric = connect()
    srq = fabric.b.device.create_srq(fabric.b.pd, max_wr=1, max_sge=1)
    with pytest.raises(QPError, match="2 elements: max_sge is 1"):
        srq.post_recv(RecvWR(1, (fabric.b.sge(), fabric.b.sge())))
    srq.post_recv(RecvWR(1))
    with pytest.raises(QPError, match="full: max_wr is 1"):
        srq.post_recv(RecvWR(2))
    with pytest.raises(QPError, match="srq_limit 2: allowed are 0 to 1"):
        srq.arm(2)
