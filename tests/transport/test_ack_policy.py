"""Which packets are acknowledged: those that ask, the newest of them, or all."""

import pytest

from rocemu.transport import AckPolicy
from rocemu.verbs import WCStatus, WROpcode
from tests.transport.fabric import connect, statuses

WRITE = WROpcode.IBV_WR_RDMA_WRITE


@pytest.mark.parametrize(
    ("policy", "acknowledged"),
    [
        (AckPolicy.REQUESTED, [0x102, 0x103]),
        (AckPolicy.COALESCED, [0x103]),
        (AckPolicy.EVERY, [0x100, 0x101, 0x102, 0x103]),
    ],
)
def test_acks_of_two_messages_of_three_packets_and_one(
    policy: AckPolicy, acknowledged: list[int]
) -> None:
    fabric = connect(ack_policy=policy)
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 3000), wr_id=1, to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), wr_id=2, to=(b.mr, 0))
    fabric.run()
    assert [psn for _, psn, _ in fabric.syndromes(b)] == acknowledged
    assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_SUCCESS), (2, WCStatus.IBV_WC_SUCCESS)]


def test_a_nak_is_never_coalesced_away() -> None:
    fabric = connect(ack_policy=AckPolicy.COALESCED)
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 8), wr_id=1, to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), wr_id=2, remote_addr=0, rkey=0xBAD00)
    fabric.run()
    assert [s for s, _, _ in fabric.syndromes(b)] == [0x1F, 0x62]


def test_a_read_between_two_writes_keeps_both_acks() -> None:
    fabric = connect(ack_policy=AckPolicy.COALESCED)
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 8), wr_id=1, to=(b.mr, 0))
    a.post(WROpcode.IBV_WR_RDMA_READ, a.sge(0, 8), wr_id=2, to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), wr_id=3, to=(b.mr, 0))
    fabric.run()
    assert [psn for _, psn, _ in fabric.syndromes(b)] == [0x100, 0x101, 0x102]
    assert len(a.sends()) == 3
