"""PSNs, MSNs and everything compared with them go round at 2^24."""

import random

import pytest

from rocemu.verbs import QPState, WCStatus, WROpcode
from rocemu.wire import AETH, RETH, AtomicETH, Op
from tests.transport.fabric import LATENCY, Sent, connect, drop, packet, statuses

OK = WCStatus.IBV_WC_SUCCESS
WRITE, READ = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_READ
ADD, SEND = WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD, WROpcode.IBV_WR_SEND


@pytest.mark.parametrize("operation", [WRITE, READ, SEND], ids=lambda op: op.name)
@pytest.mark.parametrize("start", [0xFFFFFB, 0xFFFFFD, 0xFFFFFE, 0xFFFFFF, 0])
def test_a_message_across_the_wrap(start: int, operation: WROpcode) -> None:
    fabric = connect(a_psn=start, b_psn=0xFFFFFF)
    a, b = fabric.a, fabric.b
    data = bytes(i * 7 % 251 for i in range(5000))
    a.mr.memory[:5000] = b.mr.memory[8192:13192] = data
    b.recv(50, b.sge(0, 5000))
    if operation is READ:
        a.post(READ, a.sge(0, 5000), to=(b.mr, 8192))
    else:
        a.post(operation, a.sge(0, 5000), to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 1), wr_id=2, to=(b.mr, 20000))
    fabric.run()
    sender = b if operation is READ else a
    psns = [psn for _, psn in fabric.wire(sender)]
    assert psns[:5] == [start + i & 0xFFFFFF for i in range(5)]
    assert fabric.wire(a)[-1] == (0x0A, start + 5 & 0xFFFFFF)
    assert bytes((a if operation is READ else b).mr.memory[:5000]) == data
    assert statuses(a.sends()) == [(1, OK), (2, OK)]


@pytest.mark.parametrize("lost", range(5))
@pytest.mark.parametrize("start", [0xFFFFFC, 0xFFFFFE, 0xFFFFFF])
def test_a_read_resumed_across_the_wrap(start: int, lost: int) -> None:
    fabric = connect(a_psn=start, link=drop(lost, source="192.0.2.2"))
    a, b = fabric.a, fabric.b
    data = bytes(i * 7 % 251 for i in range(5000))
    b.mr.memory[:5000] = data
    a.post(READ, a.sge(0, 5000), to=(b.mr, 0))
    fabric.run()
    resumed = fabric.wire(a)[1]
    assert resumed == (0x0C, start + lost & 0xFFFFFF)
    assert bytes(a.mr.memory[:5000]) == data
    assert statuses(a.sends()) == [(1, OK)]


def test_gap_and_duplicate_at_the_wrap() -> None:
    fabric = connect(a_psn=0xFFFFFF)
    b = fabric.b
    reth = RETH(b.mr.va, b.mr.rkey, 4)
    for psn in (0x000000, 0xFFFFFF, 0x000000, 0xFFFFFF, 0x000002):
        fabric.inject(packet(Op.RDMA_WRITE_ONLY, psn, b"data", reth=reth))
        fabric.run()
    assert fabric.syndromes(b) == [
        (0x60, 0xFFFFFF, 0),
        (0x1F, 0xFFFFFF, 1),
        (0x1F, 0x000000, 2),
        (0x1F, 0x000000, 2),
        (0x60, 0x000001, 2),
    ]


def test_a_duplicate_before_the_first_request_is_acknowledged_with_the_psn_before() -> None:
    fabric = connect(a_psn=0)
    reth = RETH(fabric.b.mr.va, fabric.b.mr.rkey, 4)
    fabric.inject(packet(Op.RDMA_WRITE_ONLY, 0xFFFF00, b"data", reth=reth))
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x1F, 0xFFFFFF, 0)]


def test_atomics_repeated_across_the_wrap() -> None:
    fabric = connect(a_psn=0xFFFFFE)
    b = fabric.b
    requests = [
        packet(Op.FETCH_ADD, psn, atomiceth=AtomicETH(b.mr.va, b.mr.rkey, 1))
        for psn in (0xFFFFFE, 0xFFFFFF, 0x000000, 0x000001)
    ]
    for request in requests + requests:
        fabric.inject(request)
        fabric.run()
    answers = [s.payload for s in fabric.log]
    assert answers[4:] == answers[:4]
    assert b.mr.load64(0) == 4


def test_one_ack_across_the_wrap() -> None:
    fabric = connect(a_psn=0xFFFFFE, link=lambda sent: ())
    a = fabric.a
    for wr_id in range(4):
        a.post(WRITE, a.sge(0, 8), wr_id=wr_id, to=(fabric.b.mr, 0))
    fabric.run(0.001)
    fabric.inject(packet(Op.ACKNOWLEDGE, 0x000000, aeth=AETH(0x1F, 3)), a)
    assert statuses(a.sends()) == [(0, OK), (1, OK), (2, OK)]
    fabric.inject(packet(Op.ACKNOWLEDGE, 0xFFFFFF, aeth=AETH(0x62, 3)), a)  # long answered
    fabric.inject(packet(Op.ACKNOWLEDGE, 0x000002, aeth=AETH(0x62, 3)), a)  # never sent
    assert a.qp.state is QPState.IBV_QPS_RTS
    fabric.inject(packet(Op.ACKNOWLEDGE, 0x000001, aeth=AETH(0x1F, 4)), a)
    assert statuses(a.sends()) == [(3, OK)]


def test_the_message_sequence_number_wraps() -> None:
    fabric = connect()
    fabric.b.qp.responder.msn = 0xFFFFFE
    for psn in (0x100, 0x101, 0x102):
        fabric.inject(packet(Op.RDMA_WRITE_ONLY, psn, reth=RETH(0, 0, 0)))
    fabric.run()
    assert [msn for _, _, msn in fabric.syndromes(fabric.b)] == [0xFFFFFF, 0, 1]


def test_loss_around_the_wrap() -> None:
    rng = random.Random(3)

    def link(sent: Sent) -> tuple[float, ...]:
        return () if rng.random() < 0.1 else (LATENCY,)

    fabric = connect(a_psn=0xFFFFE0, link=link)
    a, b = fabric.a, fabric.b
    for wr_id in range(64):
        a.mr.memory[wr_id] = wr_id + 1
        a.post(WRITE, a.sge(wr_id, 1), wr_id=3 * wr_id, to=(b.mr, wr_id))
        a.post(ADD, a.sge(8000 + 8 * wr_id, 8), wr_id=3 * wr_id + 1, to=(b.mr, 512), compare_add=1)
        a.post(READ, a.sge(1024, 1500), wr_id=3 * wr_id + 2, to=(b.mr, 1024))
    fabric.run()
    assert statuses(a.sends()) == [(wr_id, OK) for wr_id in range(192)]
    assert bytes(b.mr.memory[:64]) == bytes(range(1, 65))
    assert [a.mr.load64(8000 + 8 * i) for i in range(64)] == list(range(64))
    assert b.mr.load64(512) == 64
