"""Memory that work requests of our own may not touch: caught before the wire or at the receive."""

from collections.abc import Callable

import pytest

from rocemu.protection import Cause
from rocemu.transport import SGE, Violation
from rocemu.verbs import AccessFlags, QPState, SendFlags, WCStatus, WROpcode
from tests.transport.fabric import ALL, LATENCY, Fabric, Sent, connect, statuses

OK, PROT_ERR = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_LOC_PROT_ERR
FLUSHED = WCStatus.IBV_WC_WR_FLUSH_ERR
WRITE, READ = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_READ
SEND, ADD = WROpcode.IBV_WR_SEND, WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD
SWAP = WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP


def bad_lkey(fabric: Fabric) -> SGE:
    return SGE(fabric.a.mr.va, 8, fabric.a.mr.lkey ^ 0x100)


def rkey_for_lkey(fabric: Fabric) -> SGE:
    return SGE(fabric.a.mr.va, 8, fabric.a.mr.rkey)


def other_domain(fabric: Fabric) -> SGE:
    mr = fabric.a.device.reg_mr(fabric.a.device.alloc_pd(), 64, ALL)
    return fabric.a.sge(0, 8, mr)


def out_of_bounds(fabric: Fabric) -> SGE:
    return fabric.a.sge(fabric.a.mr.length - 7, 8)


def withdrawn(fabric: Fabric) -> SGE:
    mr = fabric.a.device.reg_mr(fabric.a.pd, 64, ALL)
    fabric.a.device.dereg_mr(mr)
    return fabric.a.sge(0, 8, mr)


CAUSES: dict[Callable[[Fabric], SGE], Cause] = {
    bad_lkey: Cause.KEY,
    rkey_for_lkey: Cause.KEY,
    other_domain: Cause.PD,
    out_of_bounds: Cause.BOUNDS,
    withdrawn: Cause.STATE,
}


@pytest.mark.parametrize("operation", [WRITE, SEND, READ, ADD, SWAP], ids=lambda op: op.name)
@pytest.mark.parametrize("cause", CAUSES, ids=lambda c: c.__name__)
def test_no_packet_and_the_peer_undisturbed(
    cause: Callable[[Fabric], SGE], operation: WROpcode
) -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    b.recv(50, b.sge(0, 64))
    a.post(operation, cause(fabric), wr_id=1, to=(b.mr, 0), flags=SendFlags(0))
    a.post(WRITE, a.sge(0, 8), wr_id=2, to=(b.mr, 0))
    fabric.run()
    assert fabric.log == []
    assert statuses(a.sends()) == [(1, PROT_ERR), (2, FLUSHED)]
    assert a.qp.state is QPState.IBV_QPS_ERR
    a.drain_events()
    (violation,) = [event for event in a.events if isinstance(event, Violation)]
    assert (violation.side, violation.datagram) == ("local", None)
    assert CAUSES[cause] in violation.verdict.causes
    assert a.async_events() == []
    # The other end knows nothing of it.
    b.drain_events()
    assert b.events == []
    assert b.receives() == []
    assert b.qp.state is QPState.IBV_QPS_RTS


@pytest.mark.parametrize(
    ("operation", "status"), [(WRITE, OK), (SEND, OK), (READ, PROT_ERR), (ADD, PROT_ERR)]
)
def test_only_what_is_written_to_needs_local_write(operation: WROpcode, status: WCStatus) -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    mr = a.device.reg_mr(a.pd, bytearray(b"constant"), AccessFlags(0))
    b.recv(50, b.sge(0, 8))
    a.post(operation, a.sge(0, 8, mr), to=(b.mr, 0))
    fabric.run()
    assert statuses(a.sends()) == [(1, status)]
    assert bytes(mr.memory) == b"constant"
    assert (fabric.log == []) == (status is PROT_ERR)


def test_what_was_posted_before_completes_first() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    a.mr.memory[:8] = b"goes out"
    a.post(WRITE, a.sge(0, 8), wr_id=1, to=(b.mr, 0))
    a.post(READ, a.sge(64, 3000), wr_id=2, to=(b.mr, 0))
    a.post(WRITE, bad_lkey(fabric), wr_id=3, to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), wr_id=4, to=(b.mr, 0))
    fabric.run()
    assert [psn for _, psn in fabric.wire(a)] == [0x100, 0x101]
    assert statuses(a.sends()) == [(1, OK), (2, OK), (3, PROT_ERR), (4, FLUSHED)]
    assert bytes(b.mr.memory[:8]) == b"goes out"
    assert b.qp.state is QPState.IBV_QPS_RTS
    assert a.device.next_timer() is None


def test_a_lost_packet_before_it_is_still_resent() -> None:
    count = 0

    def link(sent: Sent) -> tuple[float, ...]:
        nonlocal count
        count += 1
        return () if count == 1 else (LATENCY,)

    fabric = connect(link=link)
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 8), wr_id=1, to=(b.mr, 0))
    a.post(WRITE, bad_lkey(fabric), wr_id=2, to=(b.mr, 0))
    fabric.run()
    assert [psn for _, psn in fabric.wire(a)] == [0x100, 0x100]
    assert statuses(a.sends()) == [(1, OK), (2, PROT_ERR)]
    a.drain_events()
    assert len([event for event in a.events if isinstance(event, Violation)]) == 1


def test_any_element_of_the_list_counts_and_none_is_sent() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 2048), bad_lkey(fabric), to=(b.mr, 0))
    fabric.run()
    assert fabric.log == []
    assert statuses(a.sends()) == [(1, PROT_ERR)]


def test_an_empty_element_is_not_looked_at() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    a.post(WRITE, SGE(0, 0, 0xBAD00), a.sge(0, 8), SGE(1 << 63, 0, 0), to=(b.mr, 0))
    fabric.run()
    assert statuses(a.sends()) == [(1, OK)]


def test_a_region_withdrawn_under_a_retry() -> None:
    """A resend reads the region again; when it is gone, nothing more leaves."""
    fabric = connect(link=lambda sent: ())
    a, b = fabric.a, fabric.b
    mr = a.device.reg_mr(a.pd, 64, ALL)
    a.post(WRITE, a.sge(0, 8, mr), to=(b.mr, 0))
    fabric.run(0.001)
    a.device.dereg_mr(mr)
    fabric.run()
    assert len(fabric.log) == 1
    assert statuses(a.sends()) == [(1, PROT_ERR)]
    assert a.device.next_timer() is None


@pytest.mark.parametrize("operation", [READ, ADD, SWAP], ids=lambda op: op.name)
def test_a_region_withdrawn_before_a_response_is_placed(operation: WROpcode) -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    mr = a.device.reg_mr(a.pd, 4096, ALL)
    b.mr.memory[:4096] = b"r" * 4096
    a.post(operation, a.sge(0, 4096, mr), to=(b.mr, 0))
    ((_, (request,)),) = a.device.to_send(0.0)
    a.device.dereg_mr(mr)
    fabric.inject(request)
    fabric.run()
    assert statuses(a.sends()) == [(1, PROT_ERR)]
    assert bytes(mr.memory) == bytes(4096)
    assert b.qp.state is QPState.IBV_QPS_RTS


class TestReceives:
    """The peer's SEND meets a receive that is bad: 0x63 for its key, 0x61 for its length."""

    @pytest.mark.parametrize("length", [8, 3000])
    def test_bad_lkey(self, length: int) -> None:
        fabric = connect()
        a, b = fabric.a, fabric.b
        b.recv(50, SGE(b.mr.va, 4096, 0xBAD00))
        b.recv(51, b.sge(0, 64))
        a.post(SEND, a.sge(0, length))
        fabric.run()
        assert fabric.syndromes(b)[0] == (0x63, 0x100, 0)
        assert statuses(b.receives()) == [(50, PROT_ERR), (51, FLUSHED)]
        assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_REM_OP_ERR)]
        assert b.async_events() == []
        (violation,) = [event for event in b.events if isinstance(event, Violation)]
        assert (violation.side, violation.verdict.causes) == ("local", (Cause.KEY,))
        assert a.qp.state is b.qp.state is QPState.IBV_QPS_ERR

    def test_no_local_write(self) -> None:
        fabric = connect()
        a, b = fabric.a, fabric.b
        mr = b.device.reg_mr(b.pd, 64, AccessFlags.IBV_ACCESS_REMOTE_READ)
        b.recv(50, b.sge(0, 64, mr))
        a.mr.memory[:8] = b"not here"
        a.post(SEND, a.sge(0, 8))
        fabric.run()
        assert fabric.syndromes(b) == [(0x63, 0x100, 0)]
        assert bytes(mr.memory) == bytes(64)

    @pytest.mark.parametrize(("room", "length", "psn"), [(7, 8, 0x100), (1500, 3000, 0x101)])
    def test_send_longer_than_the_receive(self, room: int, length: int, psn: int) -> None:
        fabric = connect()
        a, b = fabric.a, fabric.b
        b.recv(50, b.sge(0, room))
        a.mr.memory[:length] = b"s" * length
        a.post(SEND, a.sge(0, length))
        fabric.run()
        assert (0x61, psn, 0) in fabric.syndromes(b)
        assert statuses(b.receives()) == [(50, WCStatus.IBV_WC_LOC_LEN_ERR)]
        assert b.async_events() == []
        assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_REM_INV_REQ_ERR)]
        whole = (psn - 0x100) * 1024
        assert bytes(b.mr.memory[:2048]) == b"s" * whole + bytes(2048 - whole)

    def test_an_empty_send_looks_at_no_buffer(self) -> None:
        fabric = connect()
        a, b = fabric.a, fabric.b
        b.recv(50, SGE(0, 64, 0xBAD00))
        a.post(SEND)
        fabric.run()
        assert statuses(b.receives()) == [(50, OK)]


def test_a_message_over_2_31_bytes_is_a_local_length_error() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 1 << 31), a.sge(0, 1), to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), wr_id=2, to=(b.mr, 0))
    fabric.run()
    assert fabric.log == []
    assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_LOC_LEN_ERR), (2, FLUSHED)]
