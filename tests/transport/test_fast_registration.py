"""Regions that work requests open (REG_MR) and close (LOCAL_INV), and what is refused."""

import pytest

from rocemu.protection import RegistrationError
from rocemu.transport import RegMR, Violation
from rocemu.verbs import QPState, WCOpcode, WCStatus, WROpcode
from tests.transport.fabric import ALL, drop, statuses
from tests.transport.windows import FIRST, READ, SECOND, WRITE, bind, bindable, opened, register

OK, OP_ERR = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_LOC_QP_OP_ERR
RDMA_WRITE, LOCAL_INV = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_LOCAL_INV


def test_a_region_opens_closes_and_opens_again_with_another_key() -> None:
    target = opened("fast")
    a, b, fabric, mr = target.fabric.a, target.fabric.b, target.fabric, target.mr
    old = mr.rkey
    assert (old & 0xFF, mr.lkey & 0xFF) == (0x77, 0x77)
    b.post(LOCAL_INV, wr_id=5, invalidate_rkey=old)
    register(b, mr, 0x78, wr_id=6)  # type: ignore[arg-type]
    fabric.run()
    assert [(wc.wr_id, wc.status, wc.opcode) for wc in b.sends()] == [
        (5, OK, WCOpcode.IBV_WC_LOCAL_INV),
        (6, OK, WCOpcode.IBV_WC_REG_MR),
    ]
    assert mr.rkey == old + 1
    a.mr.write(0, b"new key!")
    a.post(RDMA_WRITE, a.sge(0, 8), wr_id=1, remote_addr=mr.va, rkey=mr.rkey)
    a.post(RDMA_WRITE, a.sge(0, 8), wr_id=2, remote_addr=mr.va + 8, rkey=old)
    fabric.run()
    assert statuses(a.sends()) == [(1, OK), (2, WCStatus.IBV_WC_REM_ACCESS_ERR)]
    assert mr.read(0, 16) == b"new key!" + bytes(8)


@pytest.mark.parametrize("kind", ["window", "fast"])
def test_a_closed_key_is_refused_and_its_owner_told_why(kind: str) -> None:
    target = opened(kind)
    a, b = target.fabric.a, target.fabric.b
    b.post(LOCAL_INV, invalidate_rkey=target.rkey)
    a.post(RDMA_WRITE, a.sge(0, 8), remote_addr=target.va, rkey=target.rkey)
    target.fabric.run()
    assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_REM_ACCESS_ERR)]
    b.drain_events()
    (verdict,) = (e.verdict for e in b.events if isinstance(e, Violation))
    name = "MW w" if kind == "window" else "MR fast"
    assert verdict.describe() == f"state: {name} was invalidated"


def test_local_invalidation_waits_for_all_work_before_it() -> None:
    """A SEND out of a fast-registered region is lost once: its memory is still needed."""
    target = opened("fast")
    a, b, fabric = target.fabric.a, target.fabric.b, target.fabric
    fabric.link = drop(0, source=b.device.address)
    target.mr.write(0, b"repeated")
    a.recv(1, a.sge(0, 64))
    b.post(WROpcode.IBV_WR_SEND, b.sge(0, 8, target.mr), wr_id=1)
    b.post(LOCAL_INV, wr_id=2, invalidate_rkey=target.rkey)
    b.post(WROpcode.IBV_WR_SEND, b.sge(0, 8, target.mr), wr_id=3)
    fabric.run()
    assert statuses(b.sends()) == [(1, OK), (2, OK), (3, WCStatus.IBV_WC_LOC_PROT_ERR)]
    assert a.mr.read(0, 8) == b"repeated"
    assert len(fabric.wire(b)) == 2  # the SEND and its repetition


@pytest.mark.parametrize("what", ["open", "domain", "index", "rights", "gone"])
def test_a_refused_registration_ends_the_pair(what: str) -> None:
    target = opened("fast")
    b = target.fabric.b
    mr = b.device.alloc_mr(b.device.alloc_pd() if what == "domain" else b.pd, 64)
    mr.map(bytearray(64))
    key, access = mr.rkey, ALL
    match what:
        case "open":
            mr, key = target.mr, target.rkey  # type: ignore[assignment]
        case "index":
            key += 0x100
        case "rights":
            access = WRITE
        case "gone":
            b.device.dereg_mr(mr)
    b.post(WROpcode.IBV_WR_REG_MR, reg_mr=RegMR(mr, key, access))
    target.fabric.run()
    assert statuses(b.sends()) == [(1, OP_ERR)]
    assert b.qp.state is QPState.IBV_QPS_ERR


@pytest.mark.parametrize(
    "what", ["unknown", "region", "lkey", "variant", "type 1", "closed", "in use"]
)
def test_what_cannot_be_invalidated(what: str) -> None:
    target = opened("window" if what == "variant" else "fast")
    b, fabric = target.fabric.b, target.fabric
    key = target.rkey
    match what:
        case "unknown":
            key = 0xBAD00
        case "region":
            key = b.mr.rkey
        case "lkey":
            key = target.mr.lkey
        case "variant":
            key ^= 1
        case "type 1":
            key = bind(b, b.device.alloc_mw(b.pd, FIRST), bindable(b))
        case "closed":
            b.post(LOCAL_INV, invalidate_rkey=key)
        case "in use":
            b.post(LOCAL_INV, invalidate_rkey=key)
            register(b, target.mr, 1, ALL | 16)  # type: ignore[arg-type]
            fabric.run()
            key = target.mr.rkey
            bind(b, b.device.alloc_mw(b.pd, SECOND), target.mr, access=READ)
    fabric.run()
    assert {wc.status for wc in b.sends()} <= {OK}
    b.post(LOCAL_INV, wr_id=9, invalidate_rkey=key)
    fabric.run()
    assert statuses(b.sends()) == [(9, OP_ERR)]
    assert b.qp.state is QPState.IBV_QPS_ERR


def test_memory_changes_only_while_the_region_is_closed() -> None:
    target = opened("fast")
    with pytest.raises(RegistrationError, match="invalidate it first"):
        target.mr.map(bytearray(8))  # type: ignore[attr-defined]
    closed = target.fabric.b.device.alloc_mr(target.fabric.b.pd, 8)
    with pytest.raises(RegistrationError, match="at most 8"):
        closed.map(bytearray(9))
