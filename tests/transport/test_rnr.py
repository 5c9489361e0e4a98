"""Receiver not ready: the NAK with its timer, the wait, the retries, and the message after all."""

import pytest

from rocemu.verbs import QPState, WCStatus, WROpcode
from rocemu.wire import AETH, RETH, ImmDt, Op
from tests.transport.fabric import LATENCY, Fabric, Sent, connect, packet, statuses

OK, EXCEEDED = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_RNR_RETRY_EXC_ERR
SEND, WRITE = WROpcode.IBV_WR_SEND, WROpcode.IBV_WR_RDMA_WRITE

#: [IBTA] "RNR NAK Timer Field", milliseconds of codes 0 to 31.
# fmt: off
MILLISECONDS = [
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
    1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84,
    245.76, 327.68, 491.52,
]
# fmt: on


@pytest.mark.parametrize("code", range(32))
def test_the_wait_is_what_the_nak_says(code: int) -> None:
    fabric = connect(a_attr={"rnr_retry": 1}, b_attr={"min_rnr_timer": code})
    a, b = fabric.a, fabric.b
    a.post(SEND, a.sge(0, 8))
    fabric.run()
    assert fabric.syndromes(b) == [(0x20 | code, 0x100, 0)] * 2
    first, nak, second, _ = fabric.log
    assert second.payload == first.payload
    wait = second.when - (nak.when + LATENCY)
    assert wait == pytest.approx(MILLISECONDS[code] / 1000)
    assert statuses(a.sends()) == [(1, EXCEEDED)]
    assert a.qp.state is QPState.IBV_QPS_ERR
    assert b.qp.state is QPState.IBV_QPS_RTS


@pytest.mark.parametrize("operation", [SEND, WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM])
@pytest.mark.parametrize("rnr_retry", range(7))
def test_attempts_are_rnr_retry_and_one(rnr_retry: int, operation: WROpcode) -> None:
    fabric = connect(a_attr={"rnr_retry": rnr_retry, "retry_cnt": 0})
    a, b = fabric.a, fabric.b
    a.post(operation, a.sge(0, 8), wr_id=1, to=(b.mr, 0), flags=0)
    a.post(WRITE, a.sge(0, 8), wr_id=2, to=(b.mr, 0))
    fabric.run()
    assert [psn for _, psn in fabric.wire(a)].count(0x100) == rnr_retry + 1
    assert statuses(a.sends()) == [(1, EXCEEDED), (2, WCStatus.IBV_WC_WR_FLUSH_ERR)]
    assert b.qp.state is QPState.IBV_QPS_RTS
    assert b.async_events() == []
    # Nothing after the RNR NAK draws a sequence NAK.
    assert {syndrome for syndrome, _, _ in fabric.syndromes(b)} == {0x2C}


def test_7_is_for_ever() -> None:
    fabric = connect(a_attr={"rnr_retry": 7, "retry_cnt": 0})
    a, b = fabric.a, fabric.b
    naks = 0

    def link(sent: Sent) -> tuple[float, ...]:
        nonlocal naks
        naks += sent.packet.aeth is not None and sent.packet.aeth.syndrome == 0x2C
        if naks == 50:
            naks += 1
            b.recv(50, b.sge(0, 8))
        return (LATENCY,)

    fabric.link = link
    a.mr.memory[:8] = b"at last!"
    a.post(SEND, a.sge(0, 8))
    fabric.run()
    assert fabric.wire(a) == [(0x04, 0x100)] * 51
    assert statuses(a.sends()) == [(1, OK)]
    assert statuses(b.receives()) == [(50, OK)]
    assert bytes(b.mr.memory[:8]) == b"at last!"


@pytest.mark.parametrize(("rnr_retry", "status"), [(0, EXCEEDED), (1, EXCEEDED), (7, OK)])
def test_a_receive_that_is_posted_20_ms_late(rnr_retry: int, status: WCStatus) -> None:
    fabric = connect(a_attr={"rnr_retry": rnr_retry})
    a, b = fabric.a, fabric.b
    a.post(SEND, a.sge(0, 8))
    fabric.run(0.02)
    b.recv(50, b.sge(0, 8))
    fabric.run()
    assert statuses(a.sends()) == [(1, status)]
    assert len(b.receives()) == (status is OK)


def test_the_receive_that_comes_in_time() -> None:
    fabric = connect(a_attr={"rnr_retry": 1}, b_attr={"min_rnr_timer": 24})
    a, b = fabric.a, fabric.b
    a.mr.memory[:3000] = b"abc" * 1000
    a.post(SEND, a.sge(0, 3000), wr_id=1)
    a.post(WRITE, a.sge(0, 8), wr_id=2, to=(b.mr, 8000))
    fabric.run(0.02)
    assert bytes(b.mr.memory[8000:8008]) == bytes(8)  # nothing overtakes it
    b.recv(50, b.sge(0, 3000))
    fabric.run()
    assert fabric.syndromes(b) == [(0x38, 0x100, 0), (0x1F, 0x102, 1), (0x1F, 0x103, 2)]
    assert statuses(a.sends()) == [(1, OK), (2, OK)]
    assert bytes(b.mr.memory[:3000]) == b"abc" * 1000


def test_the_ack_timer_does_not_cut_the_wait_short() -> None:
    fabric = connect(
        a_attr={"timeout": 8, "retry_cnt": 0, "rnr_retry": 1}, b_attr={"min_rnr_timer": 0}
    )
    a = fabric.a
    a.post(SEND, a.sge(0, 8))
    fabric.run()
    assert len(fabric.wire(a)) == 2
    assert fabric.now > 0.655
    assert statuses(a.sends()) == [(1, EXCEEDED)]


def test_a_write_with_immediate_needs_its_receive_at_the_last_packet() -> None:
    fabric = connect(a_attr={"rnr_retry": 1})
    a, b = fabric.a, fabric.b
    a.mr.memory[:3000] = b"abc" * 1000
    a.post(WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM, a.sge(0, 3000), to=(b.mr, 0), imm_data=5)
    fabric.run(0.0003)
    assert fabric.syndromes(b) == [(0x2C, 0x102, 0)]
    assert bytes(b.mr.memory[:3000]) == b"abc" * 682 + b"ab" + bytes(952)
    b.recv(50)
    fabric.run()
    assert [psn for _, psn in fabric.wire(a)] == [0x100, 0x101, 0x102, 0x102]
    assert [(wc.imm_data, wc.byte_len) for wc in b.receives()] == [(5, 3000)]
    assert bytes(b.mr.memory[:3000]) == b"abc" * 1000


def test_no_receive_comes_before_a_bad_key() -> None:
    """WRITE Only with immediate: both faults at once; the region is not judged yet."""
    fabric = connect()
    request = packet(
        Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE, 0x100, b"x", reth=RETH(0, 0xBAD00, 1), immdt=ImmDt(1)
    )
    fabric.inject(request)
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x2C, 0x100, 0)]
    assert fabric.b.qp.state is QPState.IBV_QPS_RTS


def _rnr(fabric: Fabric) -> None:
    nak = packet(Op.ACKNOWLEDGE, 0x100, ackreq=False, aeth=AETH(0x2C, 0))
    fabric.inject(nak, fabric.a)


def test_a_second_nak_during_the_wait_changes_nothing() -> None:
    fabric = connect(link=lambda sent: (), a_attr={"rnr_retry": 1, "timeout": 0})
    a = fabric.a
    a.post(SEND, a.sge(0, 8))
    fabric.run(0.0001)
    _rnr(fabric)
    fabric.now += 0.0003
    _rnr(fabric)
    assert a.sends() == []
    assert a.device.next_timer() == pytest.approx(0.00064)


def test_a_nak_that_acknowledges_too_leaves_no_ack_timer_behind() -> None:
    """The RNR NAK is the first that side a hears, and the wait is longer than its time-out."""
    fabric = connect(
        a_attr={"timeout": 8, "retry_cnt": 0, "rnr_retry": 1}, b_attr={"min_rnr_timer": 24}
    )
    a, b = fabric.a, fabric.b
    fabric.link = lambda sent: () if sent.packet.bth.psn == 0x100 and sent.packet.aeth else (1e-5,)
    b.recv(50, b.sge(0, 8))
    a.post(SEND, a.sge(0, 8), wr_id=1)
    a.post(SEND, a.sge(0, 8), wr_id=2)
    fabric.run(0.001)
    assert statuses(a.sends()) == [(1, OK)]
    b.recv(51, b.sge(0, 8))
    fabric.run()
    assert fabric.wire(a) == [(0x04, 0x100), (0x04, 0x101), (0x04, 0x101)]
    assert statuses(a.sends()) == [(2, OK)]


def test_a_nak_that_acknowledges_too_is_a_retry_of_its_own() -> None:
    fabric = connect(a_attr={"rnr_retry": 1})
    a, b = fabric.a, fabric.b
    fabric.link = lambda sent: () if sent.packet.bth.psn == 0x100 and sent.packet.aeth else (1e-5,)
    b.recv(50, b.sge(0, 8))
    a.post(SEND, a.sge(0, 8), wr_id=1)
    a.post(SEND, a.sge(0, 8), wr_id=2)
    fabric.run()
    assert [psn for _, psn in fabric.wire(a)] == [0x100, 0x101, 0x101]
    assert statuses(a.sends()) == [(1, OK), (2, EXCEEDED)]


def test_any_other_answer_gives_the_retries_back() -> None:
    """Each message waits once for its receive; three in a row with one retry each."""
    fabric = connect(a_attr={"rnr_retry": 1})
    a, b = fabric.a, fabric.b
    for wr_id in range(3):
        a.post(SEND, a.sge(0, 8), wr_id=wr_id)
        fabric.run(0.0003)
        b.recv(50 + wr_id, b.sge(0, 8))
        fabric.run()
    assert [syndrome for syndrome, _, _ in fabric.syndromes(b)] == [0x2C, 0x1F] * 3
    assert statuses(a.sends()) == [(0, OK), (1, OK), (2, OK)]
