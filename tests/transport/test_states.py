"""What each state of a queue pair lets happen: posting, requests, the first packet in RTR."""

import pytest

from rocemu.transport import AddressVector, QPAttr, QPError, QPInitAttr
from rocemu.verbs import AsyncEventType, QPState, QPType, WCStatus, WROpcode
from rocemu.wire import RETH, Op
from tests.transport.fabric import (
    A_ADDRESS,
    ALL,
    TO_INIT,
    TO_RTR,
    Fabric,
    M,
    Side,
    connect,
    packet,
)

RESET, INIT, RTR = QPState.IBV_QPS_RESET, QPState.IBV_QPS_INIT, QPState.IBV_QPS_RTR
RTS, SQD, ERR = QPState.IBV_QPS_RTS, QPState.IBV_QPS_SQD, QPState.IBV_QPS_ERR


def reset(side: Side) -> None:
    side.qp.modify(QPAttr(qp_state=RESET), M.IBV_QP_STATE)


class TestPosting:
    @pytest.mark.parametrize("state", [RESET, INIT, RTR])
    def test_no_sends_before_rts(self, state: QPState) -> None:
        side = connect().a
        side.qp.state = state
        with pytest.raises(QPError, match=f"is in {state.name}: no sends"):
            side.post(WROpcode.IBV_WR_SEND)

    def test_no_receives_in_reset(self) -> None:
        side = Side(A_ADDRESS, 1)
        with pytest.raises(QPError, match="IBV_QPS_RESET: no receives"):
            side.recv(1)

    def test_receives_posted_in_init_are_used(self) -> None:
        fabric = connect()
        b = fabric.b
        reset(b)
        attr = QPAttr(
            qp_state=INIT,
            qp_access_flags=ALL,
            av=AddressVector(A_ADDRESS),
            rq_psn=0x100,
            dest_qp_num=0x11,
        )
        b.qp.modify(attr, TO_INIT)
        b.recv(50)
        attr.qp_state = RTR
        b.qp.modify(attr, TO_RTR)
        fabric.inject(packet(Op.SEND_ONLY, 0x100))
        assert [(wc.wr_id, wc.status) for wc in b.receives()] == [(50, WCStatus.IBV_WC_SUCCESS)]


class TestRequestsByState:
    @pytest.mark.parametrize(
        ("state", "answered"),
        [(RESET, 0), (INIT, 0), (RTR, 1), (RTS, 1), (SQD, 1), (ERR, 0)],
    )
    def test_answered_or_dropped(self, state: QPState, answered: int) -> None:
        fabric = connect()
        b = fabric.b
        b.qp.state = state
        reth = RETH(b.mr.va, b.mr.rkey, 4)
        fabric.inject(packet(Op.RDMA_WRITE_ONLY, 0x100, b"data", reth=reth))
        fabric.run()
        assert len(fabric.log) == answered
        assert b.device.counters["state"] == 1 - answered
        assert bytes(b.mr.memory[:4]) == (b"data" if answered else bytes(4))

    def test_the_peer_of_a_pair_that_is_not_ready_times_out(self) -> None:
        fabric = connect(a_attr={"retry_cnt": 1})
        reset(fabric.b)
        fabric.a.post(WROpcode.IBV_WR_SEND)
        fabric.run()
        assert [wc.status for wc in fabric.a.sends()] == [WCStatus.IBV_WC_RETRY_EXC_ERR]
        assert fabric.b.device.counters["state"] == 2


def in_rtr() -> Fabric:
    fabric = connect()
    fabric.b.qp.state = RTR
    return fabric


def test_communication_established_is_told_once() -> None:
    fabric = in_rtr()
    for psn in (0x100, 0x101):
        fabric.inject(packet(Op.RDMA_WRITE_ONLY, psn, reth=RETH(0, 0, 0)))
    assert fabric.b.async_events() == [AsyncEventType.IBV_EVENT_COMM_EST]


def test_no_such_event_in_rts() -> None:
    fabric = connect()
    fabric.inject(packet(Op.RDMA_WRITE_ONLY, 0x100, reth=RETH(0, 0, 0)))
    assert fabric.b.async_events() == []


def test_only_rc_pairs_are_made() -> None:
    side = Side(A_ADDRESS, 1)
    init = QPInitAttr(side.send_cq, side.recv_cq, QPType.IBV_QPT_UC)
    with pytest.raises(QPError, match="only IBV_QPT_RC"):
        side.device.create_qp(side.pd, init)


@pytest.mark.parametrize("qp_num", [0, 1, 0x11, 0xFFFFFF])
def test_a_number_that_is_taken_or_none(qp_num: int) -> None:
    side = Side(A_ADDRESS, 1)
    with pytest.raises(QPError, match="taken or not"):
        side.device.create_qp(side.pd, QPInitAttr(side.send_cq, side.recv_cq), qp_num)
