"""A key that goes while a message is on its way, at every packet boundary: each outcome is fixed.

How it goes makes no difference to the peer: deregistered, window deallocated, LOCAL_INV, or another
queue pair's SEND with Invalidate.
"""

from collections.abc import Callable

import pytest

from rocemu.protection import Cause
from rocemu.transport import AddressVector, QPAttr, QPInitAttr, QueuePair, RecvWR, SendWR, Violation
from rocemu.verbs import QPState, WCStatus, WROpcode
from rocemu.wire import RETH, Op, parse
from tests.transport.fabric import (
    ALL,
    TO_INIT,
    TO_RTR,
    TO_RTS,
    Fabric,
    Sent,
    Side,
    connect,
    drop,
    packet,
    statuses,
)
from tests.transport.windows import Opened, opened

OK, REFUSED = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_REM_ACCESS_ERR
MTU, PACKETS, PSN = 1024, 8, 0x100
TICK = 1e-3


def second_pair(fabric: Fabric) -> QueuePair:
    """Another connection between the two sides; ``a``'s end of it."""
    pairs = [
        (side, side.device.create_qp(side.pd, QPInitAttr(side.device.create_cq(), side.recv_cq)))
        for side in (fabric.a, fabric.b)
    ]
    for (side, qp), (peer, far) in zip(pairs, reversed(pairs), strict=True):
        del side
        attr = QPAttr(
            qp_access_flags=ALL,
            av=AddressVector(peer.device.address),
            path_mtu=3,
            dest_qp_num=far.qp_num,
            timeout=14,
            retry_cnt=7,
            rnr_retry=7,
        )
        for state, mask in (
            (QPState.IBV_QPS_INIT, TO_INIT),
            (QPState.IBV_QPS_RTR, TO_RTR),
            (QPState.IBV_QPS_RTS, TO_RTS),
        ):
            attr.qp_state = state
            qp.modify(attr, mask)
    pairs[1][1].post_recv(RecvWR(77))
    return pairs[0][1]


def _deregister(target: Opened) -> None:
    target.fabric.b.device.dereg_mr(target.mr)


def _local(target: Opened) -> None:
    target.fabric.b.post(WROpcode.IBV_WR_LOCAL_INV, wr_id=50, invalidate_rkey=target.rkey)
    assert target.fabric.b.qp.requester.transmit(target.fabric.now, 64) == []
    assert statuses(target.fabric.b.sends()) == [(50, OK)]


def _from_afar(target: Opened) -> None:
    fabric = target.fabric
    second = second_pair(fabric)
    inv = WROpcode.IBV_WR_SEND_WITH_INV
    second.post_send(SendWR(60, inv, invalidate_rkey=target.rkey))
    ((_, (payload,)),) = fabric.a.device.to_send(fabric.now)
    fabric.inject(payload)
    assert fabric.b.receives()[-1].invalidated_rkey == target.rkey


Way = Callable[[Opened], None]
WAYS = [
    pytest.param("fast", _deregister, id="deregistered"),
    pytest.param("fast", _local, id="region LOCAL_INV"),
    pytest.param("window", _local, id="window LOCAL_INV"),
    pytest.param("fast", _from_afar, id="SEND with Invalidate on another QP"),
]


def one_by_one(source: str) -> Callable[[Sent], tuple[float, ...]]:
    """The packets of queue pair 0x11's peer arrive one a tick, the first after one."""
    seen = [0]

    def link(sent: Sent) -> tuple[float, ...]:
        if sent.source != source:
            return (1e-6,)
        seen[0] += 1
        return (seen[0] * TICK,)

    return link


def last_causes(side: Side) -> tuple[Cause, ...]:
    side.drain_events()
    return [e.verdict.causes for e in side.events if isinstance(e, Violation)][-1]


@pytest.mark.parametrize("arrived", range(PACKETS + 1))
@pytest.mark.parametrize(("kind", "withdraw"), WAYS)
def test_write(kind: str, withdraw: Way, arrived: int) -> None:
    """What arrived before stays written, the next packet is refused with its own PSN."""
    target = opened(kind)
    fabric, a, b = target.fabric, target.fabric.a, target.fabric.b
    fabric.link = one_by_one(a.device.address)
    data = bytes(range(1, 129)) * (PACKETS * MTU // 128)
    a.mr.write(0, data)
    sge = a.sge(0, len(data))
    a.post(WROpcode.IBV_WR_RDMA_WRITE, sge, remote_addr=target.va, rkey=target.rkey)
    fabric.run(limit=(arrived + 0.5) * TICK)
    memory = target.memory
    withdraw(target)
    fabric.run()
    done = arrived * MTU
    assert bytes(memory) == data[:done] + bytes(len(data) - done)
    if arrived == PACKETS:
        assert statuses(a.sends()) == [(1, OK)]
        return
    assert statuses(a.sends())[0] == (1, REFUSED)
    assert fabric.syndromes(b)[-1] == (0x62, PSN + arrived, 0)
    assert last_causes(b) == (Cause.STATE,)
    assert b.qp.state is QPState.IBV_QPS_ERR


@pytest.mark.parametrize("sent", range(PACKETS + 1))
@pytest.mark.parametrize(("kind", "withdraw"), WAYS)
def test_read(kind: str, withdraw: Way, sent: int) -> None:
    """The first response that was not sent is a NAK in its place."""
    target = opened(kind)
    fabric, b = target.fabric, target.fabric.b
    reth = RETH(target.va, target.rkey, PACKETS * MTU)
    fabric.inject(packet(Op.RDMA_READ_REQUEST, PSN, reth=reth))
    responses = b.qp.responder.transmit(sent)
    withdraw(target)
    responses += b.qp.responder.transmit(64)
    answers = [parse(payload) for payload in responses]
    assert [p.bth.psn for p in answers] == list(range(PSN, PSN + min(sent + 1, PACKETS)))
    assert all(len(p.payload) == MTU for p in answers[:sent])
    if sent < PACKETS:
        nak = answers[-1]
        assert nak.aeth is not None
        assert (nak.bth.opcode, nak.aeth.syndrome) == (Op.ACKNOWLEDGE, 0x62)
        assert b.qp.state is QPState.IBV_QPS_ERR


@pytest.mark.parametrize(("kind", "withdraw"), WAYS)
@pytest.mark.parametrize("arrived", [False, True])
def test_atomic(kind: str, withdraw: Way, arrived: bool) -> None:
    """Refused before it came; after that its repetition has the saved result, key or no key."""
    target = opened(kind)
    fabric, a = target.fabric, target.fabric.a
    fabric.link = drop(0, source=fabric.b.device.address)
    target.mr.store64(0, 40)
    memory = target.memory
    if not arrived:
        withdraw(target)
        fabric.link = one_by_one(a.device.address)
    a.post(
        WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD,
        a.sge(0, 8),
        remote_addr=target.va,
        rkey=target.rkey,
        compare_add=2,
    )
    if arrived:
        fabric.run(limit=TICK)
        withdraw(target)
    fabric.run()
    assert int.from_bytes(memory[:8], "little") == (42 if arrived else 40)
    assert statuses(a.sends())[0] == (1, OK if arrived else REFUSED)
    if arrived:
        assert a.mr.load64(0) == 40


@pytest.mark.parametrize(("kind", "withdraw"), WAYS)
def test_repeated_read(kind: str, withdraw: Way) -> None:
    """All answers were lost and the key is gone: a duplicate draws silence, never a NAK."""
    target = opened(kind, connect(a_attr={"retry_cnt": 2}))
    fabric, a, b = target.fabric, target.fabric.a, target.fabric.b
    fabric.link = drop(*range(PACKETS), source=b.device.address)
    read = WROpcode.IBV_WR_RDMA_READ
    a.post(read, a.sge(0, PACKETS * MTU), remote_addr=target.va, rkey=target.rkey)
    fabric.run(limit=TICK)
    withdraw(target)
    fabric.run()
    assert statuses(a.sends())[0] == (1, WCStatus.IBV_WC_RETRY_EXC_ERR)
    own_ack = withdraw is _from_afar
    assert len(fabric.wire(b)) == PACKETS + own_ack
    assert b.qp.state is QPState.IBV_QPS_RTS
    assert last_causes(b) == (Cause.STATE,)
