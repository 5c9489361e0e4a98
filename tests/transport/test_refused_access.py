"""A refused access: the one NAK, both ends' states, and nothing that tells the causes apart."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from rocemu.protection import Cause
from rocemu.transport import AsyncEvent, Drop, QPStateChange, Violation
from rocemu.verbs import AccessFlags, AsyncEventType, QPState, WCOpcode, WCStatus, WROpcode
from rocemu.wire import RETH, ImmDt, Op
from tests.transport.fabric import ALL, Fabric, connect, packet, statuses

OK, REFUSED = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_REM_ACCESS_ERR
FLUSHED = WCStatus.IBV_WC_WR_FLUSH_ERR
ACCESS_ERR = AsyncEventType.IBV_EVENT_QP_ACCESS_ERR
WRITE, READ = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_READ
READ_ONLY = AccessFlags.IBV_ACCESS_REMOTE_READ


def test_the_seven_steps() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    secret = bytearray(b"for your eyes only, not your pen")
    ro = b.device.reg_mr(b.pd, secret, READ_ONLY, name="ro")
    before = bytes(b.mr.memory)
    b.recv(50)
    b.recv(51)
    a.recv(60)
    a.post(READ, a.sge(0, 32), wr_id=1, to=(ro, 0))
    a.post(WRITE, a.sge(0, 32), wr_id=2, to=(ro, 0))
    a.post(WRITE, a.sge(0, 32), wr_id=3, to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 32), wr_id=4, to=(b.mr, 0), flags=0)
    fabric.run()

    # 1, 2: the WRITE is sent once, at the PSN that is expected.
    assert [psn for opcode, psn in fabric.wire(a)] == [0x100, 0x101, 0x102, 0x103]
    # 3: nothing is written, neither by it nor by what comes behind it.
    assert secret == b"for your eyes only, not your pen"
    assert bytes(b.mr.memory) == before
    # 4: Acknowledge for PSN 0x101, Remote Access Error, MSN as before the failed message.
    answers = [sent.payload.hex() for sent in fabric.log if sent.source == b.device.address]
    assert answers[1:] == ["1100ffff00000011" + "00000101" + "62000001"]
    # 5: event and ERR in the same moment, both before the NAK has left.
    b.drain_events()
    violation, *others = b.events
    assert isinstance(violation, Violation)
    assert (violation.side, violation.verdict.causes) == ("remote", (Cause.PERMISSION,))
    assert violation.verdict.describe() == "permission: remote_write not in remote_read; MR ro"
    assert violation.datagram is not None
    assert violation.datagram.payload == fabric.log[1].payload
    assert others[:2] == [
        AsyncEvent(ACCESS_ERR, 0x11),
        QPStateChange(0x11, QPState.IBV_QPS_RTS, QPState.IBV_QPS_ERR),
    ]
    assert [(type(event), event.reason) for event in others[2:]] == [(Drop, "state")] * 2
    assert b.sends() == []
    assert statuses(b.receives()) == [(50, FLUSHED), (51, FLUSHED)]
    # 6, 7: no retry; its own status, then every later request flushed, signaled or not.
    assert statuses(a.sends()) == [(1, OK), (2, REFUSED), (3, FLUSHED), (4, FLUSHED)]
    assert statuses(a.receives()) == [(60, FLUSHED)]
    a.drain_events()
    assert a.events == [QPStateChange(0x11, QPState.IBV_QPS_RTS, QPState.IBV_QPS_ERR)]
    assert bytes(a.mr.memory[:32]) == secret
    # Work posted from now on is flushed at once, and no timer is left.
    a.post(WRITE, a.sge(0, 32), wr_id=5, to=(b.mr, 0))
    assert statuses(a.sends()) == [(5, FLUSHED)]
    assert a.device.next_timer() is None
    assert b.device.next_timer() is None
    assert a.device.to_send(fabric.now) == b.device.to_send(fabric.now) == []


def test_the_responder_is_in_error_before_its_nak_has_left() -> None:
    fabric = connect()
    b = fabric.b
    fabric.inject(packet(Op.RDMA_WRITE_ONLY, 0x100, b"x", reth=RETH(b.mr.va, 0xDEAD00, 1)))
    assert b.qp.state is QPState.IBV_QPS_ERR
    assert b.async_events() == [ACCESS_ERR]
    ((_, packets),) = b.device.to_send(fabric.now)
    assert [p.hex() for p in packets] == ["1100ffff000000110000010062000000"]


class Target(NamedTuple):
    va: int
    rkey: int


def unknown_key(fabric: Fabric) -> Target:
    return Target(fabric.b.mr.va, fabric.b.mr.rkey ^ 0x40000000)


def wrong_variant(fabric: Fabric) -> Target:
    return Target(fabric.b.mr.va, fabric.b.mr.rkey ^ 1)


def lkey_for_rkey(fabric: Fabric) -> Target:
    return Target(fabric.b.mr.va, fabric.b.mr.lkey)


def withdrawn(fabric: Fabric) -> Target:
    mr = fabric.b.device.reg_mr(fabric.b.pd, 4096, ALL)
    fabric.b.device.dereg_mr(mr)
    return Target(mr.va, mr.rkey)


def other_domain(fabric: Fabric) -> Target:
    mr = fabric.b.device.reg_mr(fabric.b.device.alloc_pd(), 4096, ALL)
    return Target(mr.va, mr.rkey)


def no_right(fabric: Fabric) -> Target:
    mr = fabric.b.device.reg_mr(fabric.b.pd, 4096, AccessFlags.IBV_ACCESS_LOCAL_WRITE)
    return Target(mr.va, mr.rkey)


def before_start(fabric: Fabric) -> Target:
    return Target(fabric.b.mr.va - 8, fabric.b.mr.rkey)


def past_end(fabric: Fabric) -> Target:
    return Target(fabric.b.mr.va + fabric.b.mr.length, fabric.b.mr.rkey)


def past_the_address_space(fabric: Fabric) -> Target:
    return Target((1 << 64) - 8, fabric.b.mr.rkey)


CAUSES: dict[Callable[[Fabric], Target], Cause] = {
    unknown_key: Cause.KEY,
    wrong_variant: Cause.KEY,
    lkey_for_rkey: Cause.KEY,
    withdrawn: Cause.STATE,
    other_domain: Cause.PD,
    no_right: Cause.PERMISSION,
    before_start: Cause.BOUNDS,
    past_end: Cause.BOUNDS,
    past_the_address_space: Cause.BOUNDS,
}
OPERATIONS = [
    WRITE,
    READ,
    WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP,
    WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD,
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.name)
@pytest.mark.parametrize("cause", CAUSES, ids=lambda c: c.__name__)
def test_every_cause_and_operation_draws_the_same_bytes(
    cause: Callable[[Fabric], Target], operation: WROpcode
) -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    target = cause(fabric)
    before = bytes(b.mr.memory)
    a.mr.memory[:8] = b"A secret"
    a.post(operation, a.sge(0, 8), remote_addr=target.va, rkey=target.rkey, compare_add=1)
    fabric.run()
    answers = [sent.payload.hex() for sent in fabric.log if sent.source == b.device.address]
    assert answers == ["1100ffff000000110000010062000000"]
    assert statuses(a.sends()) == [(1, REFUSED)]
    assert bytes(b.mr.memory) == before
    assert bytes(a.mr.memory[:8]) == b"A secret"
    b.drain_events()
    (violation,) = [event for event in b.events if isinstance(event, Violation)]
    assert CAUSES[cause] in violation.verdict.causes
    assert b.async_events() == [ACCESS_ERR]
    assert a.qp.state is b.qp.state is QPState.IBV_QPS_ERR


@pytest.mark.parametrize(("offset", "length"), [(1, 64), (63, 2), (0, 65)])
def test_not_even_the_part_that_fits_is_written(offset: int, length: int) -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    mr = b.device.reg_mr(b.pd, 64, ALL)
    a.mr.memory[:] = b"\xff" * a.mr.length
    a.post(WRITE, a.sge(0, length), to=(mr, offset))
    fabric.run()
    assert fabric.syndromes(b) == [(0x62, 0x100, 0)]
    assert bytes(mr.memory) == bytes(64)


def test_a_long_write_is_judged_as_a_whole_at_its_first_packet() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    mr = b.device.reg_mr(b.pd, 2048, ALL)
    a.mr.memory[:] = b"\xff" * a.mr.length
    a.post(WRITE, a.sge(0, 2048), to=(mr, 1))
    fabric.run()
    assert fabric.syndromes(b) == [(0x62, 0x100, 0)]
    assert bytes(mr.memory) == bytes(2048)


def test_a_region_that_ends_with_the_address_space() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    mr = b.device.reg_mr(b.pd, 1024, ALL, va=(1 << 64) - 1024)
    a.mr.memory[0] = 0x77
    a.post(WRITE, a.sge(0, 1), wr_id=1, to=(mr, 1023))
    a.post(READ, a.sge(8, 1), wr_id=2, to=(mr, 1023))
    a.post(WRITE, a.sge(0, 2), wr_id=3, to=(mr, 1023))
    fabric.run()
    assert statuses(a.sends()) == [(1, OK), (2, OK), (3, REFUSED)]
    assert mr.memory[1023] == a.mr.memory[8] == 0x77
    assert mr.memory[0] == 0


class TestEventOrCompletion:
    """A fault that meets a receive completes it in error, any other raises the event."""

    def test_write_only_with_immediate_completes_its_receive(self) -> None:
        fabric = connect()
        b = fabric.b
        b.recv(70)
        b.recv(71)
        fabric.inject(
            packet(
                Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE,
                0x100,
                b"data",
                reth=RETH(b.mr.va, 0xBAD00, 4),
                immdt=ImmDt(7),
            )
        )
        fabric.run()
        assert fabric.syndromes(b) == [(0x62, 0x100, 0)]
        assert statuses(b.receives()) == [(70, WCStatus.IBV_WC_LOC_ACCESS_ERR), (71, FLUSHED)]
        assert b.async_events() == []

    def test_long_write_with_immediate_fails_where_no_receive_is_involved(self) -> None:
        fabric = connect()
        a, b = fabric.a, fabric.b
        b.recv(70)
        a.post(
            WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM,
            a.sge(0, 3000),
            remote_addr=b.mr.va,
            rkey=0xBAD00,
        )
        fabric.run()
        assert fabric.syndromes(b) == [(0x62, 0x100, 0)]
        assert statuses(b.receives()) == [(70, FLUSHED)]
        assert b.async_events() == [ACCESS_ERR]

    def test_key_withdrawn_before_the_last_packet_with_immediate(self) -> None:
        fabric = connect()
        b = fabric.b
        mr = b.device.reg_mr(b.pd, 4096, ALL)
        b.recv(70)
        fabric.inject(
            packet(Op.RDMA_WRITE_FIRST, 0x100, b"1" * 1024, reth=RETH(mr.va, mr.rkey, 1028))
        )
        b.device.dereg_mr(mr)
        fabric.inject(packet(Op.RDMA_WRITE_LAST_WITH_IMMEDIATE, 0x101, b"last", immdt=ImmDt(7)))
        fabric.run()
        assert fabric.syndromes(b) == [(0x1F, 0x100, 0), (0x62, 0x101, 0)]
        assert [(wc.wr_id, wc.status, wc.opcode) for wc in b.receives()] == [
            (70, WCStatus.IBV_WC_LOC_ACCESS_ERR, WCOpcode.IBV_WC_RECV)
        ]
        assert b.async_events() == []
        assert bytes(mr.memory[1020:1030]) == b"1111" + bytes(6)
