"""The PSN gate: a request ahead of the expected PSN draws one sequence NAK, and goes back."""

import pytest

from rocemu.verbs import QPState, WCStatus, WROpcode
from rocemu.wire import RETH, Op
from tests.transport.fabric import (
    A_ADDRESS,
    LATENCY,
    Fabric,
    Sent,
    connect,
    drop,
    packet,
    statuses,
)

OK = WCStatus.IBV_WC_SUCCESS
WRITE, READ = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_READ


def write(fabric: Fabric, psn: int, data: bytes = b"data", offset: int = 0) -> bytes:
    reth = RETH(fabric.b.mr.va + offset, fabric.b.mr.rkey, len(data))
    return packet(Op.RDMA_WRITE_ONLY, psn, data, reth=reth)


def test_a_gap_draws_one_nak_with_the_expected_psn() -> None:
    fabric = connect()
    for psn in (0x103, 0x104, 0x102):
        fabric.inject(write(fabric, psn))
        fabric.run()
    answers = [sent.payload.hex() for sent in fabric.log]
    assert answers == ["1100ffff00000011" + "00000100" + "60000000"]
    assert fabric.b.qp.state is QPState.IBV_QPS_RTS
    assert fabric.b.async_events() == []
    assert bytes(fabric.b.mr.memory[:4]) == bytes(4)


def test_the_expected_packet_arms_the_nak_again() -> None:
    fabric = connect()
    for psn in (0x101, 0x100, 0x105, 0x106, 0x101, 0x103, 0x104):
        fabric.inject(write(fabric, psn))
        fabric.run()
    assert fabric.syndromes(fabric.b) == [
        (0x60, 0x100, 0),
        (0x1F, 0x100, 1),
        (0x60, 0x101, 1),
        (0x1F, 0x101, 2),
        (0x60, 0x102, 2),
    ]


def test_any_opcode_ahead_is_a_gap_before_it_is_anything_else() -> None:
    for opcode, headers in (
        (Op.RDMA_WRITE_MIDDLE, {}),
        (Op.SEND_LAST, {}),
        (Op.RDMA_READ_REQUEST, {"reth": RETH(0, 0, 8)}),
    ):
        fabric = connect()
        fabric.inject(packet(opcode, 0x101, **headers))
        fabric.run()
        assert fabric.syndromes(fabric.b) == [(0x60, 0x100, 0)]
        assert fabric.b.qp.state is QPState.IBV_QPS_RTS


@pytest.mark.parametrize(
    ("ahead", "answer"),
    [
        (1, (0x60, 0x100, 0)),
        (0x7FFFFF, (0x60, 0x100, 0)),  # the farthest that is still ahead
        (0x800000, (0x1F, 0xFF, 0)),  # from here on it is behind: a duplicate
        (0xFFFFFF, (0x1F, 0xFF, 0)),
    ],
)
def test_half_of_the_psns_are_ahead(ahead: int, answer: tuple[int, int, int]) -> None:
    fabric = connect()
    fabric.inject(write(fabric, 0x100 + ahead & 0xFFFFFF))
    fabric.run()
    assert fabric.syndromes(fabric.b) == [answer]


def test_go_back_n_sends_the_lost_and_the_later_packets_once_more() -> None:
    fabric = connect(link=drop(4))
    a, b = fabric.a, fabric.b
    a.mr.memory[:10240] = bytes(range(256)) * 40
    a.post(WRITE, a.sge(0, 10240), to=(b.mr, 0))
    fabric.run()
    # One NAK and one burst, with the same PSNs and bytes.
    assert [s for s in fabric.syndromes(b) if s[0] == 0x60] == [(0x60, 0x104, 0)]
    assert [psn for _, psn in fabric.wire(a)] == [*range(0x100, 0x10A), *range(0x104, 0x10A)]
    sent = [s.payload for s in fabric.log if s.source == A_ADDRESS]
    assert sent[10:] == sent[4:10]
    assert statuses(a.sends()) == [(1, OK)]
    assert bytes(b.mr.memory[:10240]) == bytes(range(256)) * 40
    assert fabric.now < 0.001  # no time-out was waited for


def test_one_in_twenty_lost_draws_one_nak_and_one_burst() -> None:
    fabric = connect(link=drop(7))
    a, b = fabric.a, fabric.b
    for wr_id in range(20):
        a.mr.memory[wr_id] = wr_id
        a.post(WRITE, a.sge(wr_id, 1), wr_id=wr_id, to=(b.mr, wr_id))
    fabric.run()
    assert [s for s in fabric.syndromes(b) if s[0] == 0x60] == [(0x60, 0x107, 7)]
    assert [psn for _, psn in fabric.wire(a)] == [*range(0x100, 0x114), *range(0x107, 0x114)]
    assert statuses(a.sends()) == [(wr_id, OK) for wr_id in range(20)]
    assert bytes(b.mr.memory[:20]) == bytes(range(20))


def test_reordered_packets_cost_a_resend_but_no_harm() -> None:
    seen = []

    def late_second(sent: Sent) -> tuple[float, ...]:
        seen.append(sent)
        return (5 * LATENCY,) if len(seen) == 2 else (LATENCY,)

    fabric = connect(link=late_second)
    a, b = fabric.a, fabric.b
    a.mr.memory[:3072] = b"abc" * 1024
    a.post(WRITE, a.sge(0, 3072), to=(b.mr, 0))
    fabric.run()
    assert [s for s in fabric.syndromes(b) if s[0] == 0x60] == [(0x60, 0x101, 0)]
    assert statuses(a.sends()) == [(1, OK)]
    assert bytes(b.mr.memory[:3072]) == b"abc" * 1024


def test_a_lost_nak_is_made_good_by_the_timer() -> None:
    fabric = connect()
    lost = []

    def link(sent: Sent) -> tuple[float, ...]:
        is_nak = sent.packet.aeth is not None and sent.packet.aeth.syndrome == 0x60
        if (sent.packet.bth.psn, sent.source) == (0x100, A_ADDRESS) and not lost:
            lost.append("request")
            return ()
        if is_nak and "nak" not in lost:
            lost.append("nak")
            return ()
        return (LATENCY,)

    fabric.link = link
    a, b = fabric.a, fabric.b
    for wr_id in (1, 2):
        a.post(WRITE, a.sge(0, 8), wr_id=wr_id, to=(b.mr, 0))
    fabric.run()
    assert lost == ["request", "nak"]
    assert [psn for _, psn in fabric.wire(a)] == [0x100, 0x101, 0x100, 0x101]
    assert statuses(a.sends()) == [(1, OK), (2, OK)]
