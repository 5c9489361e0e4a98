"""Time-outs and retries of the requester, and how it takes ACKs."""

import pytest

from rocemu.verbs import MTU, QPState, WCStatus, WROpcode
from rocemu.wire import AETH, Op
from tests.transport.fabric import (
    A_ADDRESS,
    B_ADDRESS,
    LATENCY,
    Fabric,
    Sent,
    connect,
    drop,
    packet,
    statuses,
)

OK, RETRY_EXC = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_RETRY_EXC_ERR
WRITE, READ = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_READ


def never(sent: Sent) -> tuple[float, ...]:
    return ()


def ack(psn: int, syndrome: int = 0x1F, msn: int = 1) -> bytes:
    return packet(Op.ACKNOWLEDGE, psn, ackreq=False, aeth=AETH(syndrome, msn))


def posted(*lengths: int, mtu: MTU = MTU.IBV_MTU_1024) -> Fabric:
    """A fabric whose link loses all; WRITEs of these lengths are on the way from side a."""
    fabric = connect(mtu=mtu, link=never)
    for wr_id, length in enumerate(lengths, 1):
        fabric.a.post(WRITE, fabric.a.sge(0, length), wr_id=wr_id, to=(fabric.b.mr, 0))
    fabric.run(0.001)
    fabric.log.clear()
    return fabric


@pytest.mark.parametrize("retry_cnt", range(8))
def test_attempts_are_retry_cnt_and_one(retry_cnt: int) -> None:
    fabric = connect(link=never, a_attr={"retry_cnt": retry_cnt})
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 8), wr_id=1, to=(b.mr, 0), flags=0)
    a.post(WRITE, a.sge(0, 8), wr_id=2, to=(b.mr, 0), flags=0)
    fabric.run()
    assert fabric.wire(a) == [(0x0A, 0x100), (0x0A, 0x101)] * (retry_cnt + 1)
    assert statuses(a.sends()) == [(1, RETRY_EXC), (2, WCStatus.IBV_WC_WR_FLUSH_ERR)]
    assert a.qp.state is QPState.IBV_QPS_ERR
    assert a.async_events() == []
    assert a.device.next_timer() is None


@pytest.mark.parametrize("timeout", [1, 8, 14, 20])
def test_a_retry_comes_after_the_local_ack_timeout(timeout: int) -> None:
    fabric = connect(link=never, a_attr={"retry_cnt": 1, "timeout": timeout})
    fabric.a.post(WRITE, fabric.a.sge(0, 8), to=(fabric.b.mr, 0))
    fabric.run()
    first, second = fabric.log
    assert second.when - first.when == pytest.approx(4.096e-6 * 2**timeout)
    assert fabric.now == pytest.approx(2 * 4.096e-6 * 2**timeout)


def test_timeout_0_waits_for_ever() -> None:
    fabric = connect(link=never, a_attr={"timeout": 0})
    fabric.a.post(WRITE, fabric.a.sge(0, 8), to=(fabric.b.mr, 0))
    fabric.run(1e9)
    assert len(fabric.log) == 1
    assert fabric.a.device.next_timer() is None
    assert fabric.a.sends() == []


def test_progress_gives_all_retries_back() -> None:
    """Every packet is lost twice and each attempt after that gets through: five in a row."""
    seen: dict[int, int] = {}

    def link(sent: Sent) -> tuple[float, ...]:
        if sent.source == B_ADDRESS:
            return (LATENCY,)
        seen[sent.packet.bth.psn] = seen.get(sent.packet.bth.psn, 0) + 1
        return () if seen[sent.packet.bth.psn] <= 2 else (LATENCY,)

    fabric = connect(link=link, a_attr={"retry_cnt": 2})
    a, b = fabric.a, fabric.b
    for wr_id in range(5):
        a.post(WRITE, a.sge(0, 8), wr_id=wr_id, to=(b.mr, 0))
        fabric.run()
    assert statuses(a.sends()) == [(wr_id, OK) for wr_id in range(5)]


def test_the_timer_restarts_with_progress() -> None:
    fabric = posted(8, 8)
    fabric.now = 0.06
    fabric.inject(ack(0x100), fabric.a)
    fabric.run(0.05)  # the first deadline, 67 ms, passes
    assert fabric.log == []
    fabric.run(0.02)
    assert [psn for _, psn in fabric.wire(fabric.a)] == [0x101]


def test_a_resend_is_the_same_bytes() -> None:
    fabric = connect(link=drop(0, 1, 2), a_attr={"timeout": 10})
    a, b = fabric.a, fabric.b
    a.mr.memory[:2500] = b"same" * 625
    a.post(WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM, a.sge(0, 2500), to=(b.mr, 0), imm_data=9)
    b.recv(1)
    fabric.run()
    sent = [s.payload for s in fabric.log if s.source == A_ADDRESS]
    assert sent[3:] == sent[:3]


def test_a_lost_ack() -> None:
    fabric = connect(link=drop(0, source=B_ADDRESS))
    a, b = fabric.a, fabric.b
    b.recv(50, b.sge(0, 8))
    a.post(WROpcode.IBV_WR_SEND, a.sge(0, 8))
    fabric.run()
    assert fabric.wire(a) == [(0x04, 0x100)] * 2
    assert statuses(a.sends()) == [(1, OK)]
    assert statuses(b.receives()) == [(50, OK)]


class TestAcknowledgements:
    def test_one_ack_covers_everything_before_it(self) -> None:
        fabric = posted(8, 3000, 8)
        fabric.inject(ack(0x104, msn=3), fabric.a)
        assert statuses(fabric.a.sends()) == [(1, OK), (2, OK), (3, OK)]
        assert fabric.a.device.next_timer() is None

    @pytest.mark.parametrize("syndrome", [0x00, 0x01, 0x1E, 0x1F])
    @pytest.mark.parametrize("msn", [0, 1, 77])
    def test_credits_and_msn_do_not_matter(self, syndrome: int, msn: int) -> None:
        fabric = posted(8)
        fabric.inject(ack(0x100, syndrome, msn), fabric.a)
        assert statuses(fabric.a.sends()) == [(1, OK)]
        fabric.a.post(WRITE, fabric.a.sge(0, 8), wr_id=2, to=(fabric.b.mr, 0))
        fabric.run(0.001)
        assert len(fabric.log) == 1

    def test_an_ack_within_a_message_completes_nothing(self) -> None:
        fabric = posted(3000)
        fabric.inject(ack(0x101), fabric.a)
        assert fabric.a.sends() == []
        fabric.run(0.1)
        assert [psn for _, psn in fabric.wire(fabric.a)] == [0x102]

    @pytest.mark.parametrize("psn", [0x101, 0x105, 0x7FFFFF])
    def test_an_ack_for_what_was_never_sent_is_ignored(self, psn: int) -> None:
        fabric = posted(8)
        fabric.inject(ack(psn), fabric.a)
        assert fabric.a.sends() == []
        fabric.run(0.1)
        assert [p for _, p in fabric.wire(fabric.a)] == [0x100]

    @pytest.mark.parametrize("psn", [0xFF, 0x80, 0xFFFFFF])
    @pytest.mark.parametrize("syndrome", [0x1F, 0x22, 0x60, 0x61, 0x62])
    def test_an_answer_behind_is_ignored(self, psn: int, syndrome: int) -> None:
        fabric = posted(8)
        fabric.inject(ack(psn, syndrome), fabric.a)
        fabric.run(0.01)
        assert fabric.a.sends() == []
        assert fabric.log == []
        assert fabric.a.qp.state is QPState.IBV_QPS_RTS

    def test_a_ghost_ack_with_nothing_outstanding(self) -> None:
        fabric = posted(8)
        for _ in range(3):
            fabric.inject(ack(0x100), fabric.a)
        assert statuses(fabric.a.sends()) == [(1, OK)]
        assert fabric.a.qp.state is QPState.IBV_QPS_RTS

    def test_an_ack_overtakes_a_resend(self) -> None:
        """The resend has begun when the answers to the first attempt come in."""
        fabric = posted(8, 8, 8)
        fabric.a.device.handle_timer(0.1)
        fabric.inject(ack(0x101), fabric.a)
        assert statuses(fabric.a.sends()) == [(1, OK), (2, OK)]
        fabric.run(0.01)
        assert [psn for _, psn in fabric.wire(fabric.a)] == [0x102]

    def test_an_ack_does_not_complete_a_read(self) -> None:
        fabric = connect(link=never)
        a, b = fabric.a, fabric.b
        a.post(WRITE, a.sge(0, 8), wr_id=1, to=(b.mr, 0))
        a.post(READ, a.sge(0, 8), wr_id=2, to=(b.mr, 0))
        a.post(WRITE, a.sge(0, 8), wr_id=3, to=(b.mr, 0))
        fabric.run(0.001)
        fabric.log.clear()
        fabric.inject(ack(0x102), a)
        fabric.run(0.001)
        assert statuses(a.sends()) == [(1, OK)]
        # Implied NAK: resent at once from the READ on, but not again for the same answer.
        assert fabric.wire(a) == [(0x0C, 0x101), (0x0A, 0x102)]
        fabric.inject(ack(0x102), a)
        fabric.run(0.001)
        assert len(fabric.log) == 2


class TestSequenceNaks:
    def test_a_resend_at_once_from_the_missing_psn(self) -> None:
        fabric = posted(8, 8, 8)
        fabric.inject(ack(0x101, 0x60), fabric.a)
        fabric.run(0.001)
        assert statuses(fabric.a.sends()) == [(1, OK)]
        assert [psn for _, psn in fabric.wire(fabric.a)] == [0x101, 0x102]

    def test_repeated_naks_without_progress_wait_for_the_timer(self) -> None:
        fabric = posted(8, 8)
        for _ in range(5):
            fabric.inject(ack(0x100, 0x60), fabric.a)
            fabric.run(0.001)
        assert [psn for _, psn in fabric.wire(fabric.a)] == [0x100, 0x101]

    def test_after_the_timer_one_is_heeded_again(self) -> None:
        fabric = posted(8)
        for resends in (1, 2):
            fabric.inject(ack(0x100, 0x60), fabric.a)
            fabric.run(0.001)
            assert len(fabric.log) == 2 * resends - 1
            fabric.run(0.07)
            assert len(fabric.log) == 2 * resends

    def test_they_count_against_retry_cnt(self) -> None:
        fabric = connect(link=never, a_attr={"retry_cnt": 1})
        fabric.a.post(WRITE, fabric.a.sge(0, 8), to=(fabric.b.mr, 0))
        fabric.run(0.001)
        fabric.inject(ack(0x100, 0x60), fabric.a)
        fabric.run()
        assert len(fabric.log) == 2
        assert statuses(fabric.a.sends()) == [(1, RETRY_EXC)]


def test_the_window_bounds_what_is_on_the_way() -> None:
    fabric = connect(link=never, size=1 << 18, a_attr={"timeout": 0})
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 100 * 1024), to=(b.mr, 0))
    fabric.run(0.001)
    assert [psn for _, psn in fabric.wire(a)] == list(range(0x100, 0x120))
    # Some packet among them asks for an ACK, or the rest would wait for the timer.
    asked = [sent.packet.bth.psn for sent in fabric.log if sent.packet.bth.ackreq]
    assert asked
    fabric.log.clear()
    fabric.inject(ack(asked[0]), a)
    fabric.run(0.001)
    assert [psn for _, psn in fabric.wire(a)] == list(range(0x120, asked[0] + 0x21))


def test_a_long_message_never_waits_for_the_timer() -> None:
    fabric = connect(size=1 << 20)
    a, b = fabric.a, fabric.b
    a.mr.memory[:] = bytes(range(256)) * 4096
    a.post(WRITE, a.sge(0, 1 << 20), to=(b.mr, 0))
    fabric.run()
    assert statuses(a.sends()) == [(1, OK)]
    assert bytes(b.mr.memory) == bytes(a.mr.memory)
    assert fabric.now < 0.01


def test_a_host_where_nobody_listens_fails_at_once() -> None:
    fabric = posted(8, 8)
    fabric.a.device.unreachable(B_ADDRESS, fabric.now)
    (first, second) = fabric.a.sends()
    assert (first.status, first.vendor_err) == (RETRY_EXC, 111)
    assert second.status is WCStatus.IBV_WC_WR_FLUSH_ERR


def test_a_host_where_nobody_listens_does_not_matter_with_nothing_sent() -> None:
    fabric = posted(8)
    fabric.inject(ack(0x100), fabric.a)
    fabric.a.device.unreachable(B_ADDRESS, fabric.now)
    assert fabric.a.qp.state is QPState.IBV_QPS_RTS


def test_a_host_that_is_not_the_peer_does_not_matter() -> None:
    fabric = posted(8)
    fabric.a.device.unreachable("192.0.2.9", fabric.now)
    assert fabric.a.sends() == []
    assert fabric.a.qp.state is QPState.IBV_QPS_RTS
