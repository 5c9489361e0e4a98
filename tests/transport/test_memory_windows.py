"""Memory windows of type 1 and 2B: binds that open, binds that are refused, and their causes."""

from collections.abc import Callable

import pytest

from rocemu.protection import (
    BindInfo,
    Cause,
    MemoryRegion,
    MemoryWindow,
    PDInUseError,
    RegionInUseError,
)
from rocemu.transport import BindMW, QPError, QPInitAttr, SendWR, Violation
from rocemu.verbs import AccessFlags, MWType, QPState, SendFlags, WCOpcode, WCStatus, WROpcode
from tests.transport.fabric import ALL, Fabric, Side, connect, statuses
from tests.transport.windows import (
    FIRST,
    LOCAL_WRITE,
    MW_BIND,
    READ,
    SECOND,
    WRITE,
    bind,
    bindable,
    opened,
)

OK, BIND_ERR = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_MW_BIND_ERR
REFUSED = WCStatus.IBV_WC_REM_ACCESS_ERR
ZERO_BASED = AccessFlags.IBV_ACCESS_ZERO_BASED


def write(fabric: Fabric, addr: int, rkey: int, length: int = 8) -> WCStatus:
    a = fabric.a
    a.mr.write(0, b"\xa5" * length)
    a.post(WROpcode.IBV_WR_RDMA_WRITE, a.sge(0, length), remote_addr=addr, rkey=rkey)
    fabric.run()
    return a.sends()[0].status


def causes(side: Side) -> list[tuple[Cause, ...]]:
    side.drain_events()
    return [e.verdict.causes for e in side.events if isinstance(e, Violation)]


def details(side: Side) -> list[str]:
    side.drain_events()
    return [e.verdict.describe() for e in side.events if isinstance(e, Violation)]


@pytest.mark.parametrize("mw_type", [FIRST, SECOND])
def test_a_bound_window_opens_its_part_of_the_region_and_no_more(mw_type: MWType) -> None:
    fabric = connect()
    b = fabric.b
    mr, mw = bindable(b, access=LOCAL_WRITE | MW_BIND), b.device.alloc_mw(b.pd, mw_type, name="w")
    rkey = bind(b, mw, mr, 1024, 64, WRITE)
    fabric.run()
    done = b.sends()
    assert [(wc.status, wc.opcode) for wc in done] == [(OK, WCOpcode.IBV_WC_BIND_MW)]
    assert fabric.log == []  # nothing of a bind is seen outside
    assert mw.rkey == rkey
    # The region itself has no remote right: the window's are its own.
    assert write(fabric, mr.va + 1024, rkey, 64) is OK
    assert mr.read(1024, 64) == b"\xa5" * 64
    assert write(fabric, mr.va + 1024, rkey, 65) is REFUSED
    assert causes(b) == [(Cause.BOUNDS,)]
    assert mr.read(1088, 8) == bytes(8)


def test_the_low_byte_of_a_type_2_key_is_its_binders_choice() -> None:
    fabric = connect()
    b = fabric.b
    mr, mw = bindable(b), b.device.alloc_mw(b.pd, SECOND)
    index = mw.rkey & ~0xFF
    bind(b, mw, mr, key=0xC3)
    fabric.run()
    assert mw.rkey == index | 0xC3
    assert write(fabric, mr.va, index | 0xC4) is REFUSED
    assert causes(b) == [(Cause.KEY,)]


@pytest.mark.parametrize("mw_type", [FIRST, SECOND])
def test_a_window_that_was_never_bound_opens_nothing(mw_type: MWType) -> None:
    fabric = connect()
    mw = fabric.b.device.alloc_mw(fabric.b.pd, mw_type, name="w")
    assert write(fabric, 0, mw.rkey) is REFUSED
    assert details(fabric.b)[0].startswith("state: MW w is free; permission: remote_write not in")


def test_a_right_that_the_window_lacks() -> None:
    fabric = connect()
    b = fabric.b
    mr, mw = bindable(b), b.device.alloc_mw(b.pd, SECOND, name="w")
    rkey = bind(b, mw, mr, access=READ)
    fabric.run()
    assert write(fabric, mr.va, rkey) is REFUSED
    assert details(b) == ["permission: remote_write not in remote_read; MW w"]


@pytest.mark.parametrize(("mw_type", "status"), [(FIRST, OK), (SECOND, REFUSED)])
def test_who_else_may_use_it(mw_type: MWType, status: WCStatus) -> None:
    """Type 1 is for any queue pair of the domain, 2B for the one that it was bound on."""
    fabric = connect()
    b = fabric.b
    mr, mw = bindable(b), b.device.alloc_mw(b.pd, mw_type, name="w")
    other = another_qp(b)
    info = BindInfo(mr, mr.va, 64, WRITE)
    b.device.table.bind(mw, mw.rkey, info, b.pd.handle, other)
    assert write(fabric, mr.va, mw.rkey) is status
    assert details(b) == ([] if status is OK else [f"qp: QP 17, bound to QP {other}; MW w"])


def another_qp(side: Side) -> int:
    return side.device.create_qp(side.pd, QPInitAttr(side.send_cq, side.recv_cq)).qp_num


def test_a_type_1_window_moves_and_closes_by_binds_alone() -> None:
    fabric = connect()
    b = fabric.b
    mr, mw = bindable(b), b.device.alloc_mw(b.pd, FIRST, name="w")
    first = bind(b, mw, mr, 0, 64)
    second = bind(b, mw, mr, 4096, 64)
    fabric.run()
    assert first != second == mw.rkey
    assert write(fabric, mr.va + 4096, second) is OK
    closed = bind(b, mw, mr, 0, 0)
    fabric.run()
    assert statuses(b.sends()) == [(1, OK)] * 3
    assert mr.windows == 0
    assert write(fabric, mr.va + 4096, closed) is REFUSED
    assert causes(b) == [(Cause.STATE,)]


def test_the_key_of_an_earlier_bind_is_stale() -> None:
    fabric = connect()
    b = fabric.b
    mr, mw = bindable(b), b.device.alloc_mw(b.pd, FIRST)
    first = bind(b, mw, mr)
    bind(b, mw, mr)
    fabric.run()
    assert write(fabric, mr.va, first) is REFUSED
    assert causes(b) == [(Cause.KEY,)]


Refusal = Callable[[Side, MemoryRegion, MemoryWindow], BindMW]


def asks(
    offset: int = 0, length: int = 64, access: AccessFlags = WRITE, key: int = 0x11
) -> Refusal:
    def make(side: Side, mr: MemoryRegion, mw: MemoryWindow) -> BindMW:
        info = BindInfo(mr, mr.va + offset, length, access)
        return BindMW(mw, (mw.rkey & ~0xFF) + key, info)

    return make


def _other_pd_region(side: Side, mr: MemoryRegion, mw: MemoryWindow) -> BindMW:
    odd = side.device.reg_mr(side.device.alloc_pd(), 64, ALL | MW_BIND)
    return BindMW(mw, mw.rkey, BindInfo(odd, odd.va, 64, WRITE))


def _other_pd_window(side: Side, mr: MemoryRegion, mw: MemoryWindow) -> BindMW:
    odd = side.device.alloc_mw(side.device.alloc_pd(), SECOND)
    return BindMW(odd, odd.rkey, BindInfo(mr, mr.va, 64, WRITE))


def _other_pd_both(side: Side, mr: MemoryRegion, mw: MemoryWindow) -> BindMW:
    pd = side.device.alloc_pd()
    region, window = side.device.reg_mr(pd, 64, ALL | MW_BIND), side.device.alloc_mw(pd, SECOND)
    return BindMW(window, window.rkey, BindInfo(region, region.va, 64, WRITE))


def _region(access: AccessFlags) -> Refusal:
    def make(side: Side, mr: MemoryRegion, mw: MemoryWindow) -> BindMW:
        odd = side.device.reg_mr(side.pd, 64, access)
        return BindMW(mw, mw.rkey, BindInfo(odd, odd.va, 64, WRITE))

    return make


def _deregistered(side: Side, mr: MemoryRegion, mw: MemoryWindow) -> BindMW:
    side.device.dereg_mr(mr)
    return asks()(side, mr, mw)


def _deallocated(side: Side, mr: MemoryRegion, mw: MemoryWindow) -> BindMW:
    side.device.dealloc_mw(mw)
    return asks()(side, mr, mw)


def _bound(side: Side, mr: MemoryRegion, mw: MemoryWindow) -> BindMW:
    info = BindInfo(mr, mr.va, 64, READ)
    side.device.table.bind(mw, mw.rkey, info, side.pd.handle, side.qp.qp_num)
    return asks()(side, mr, mw)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(_other_pd_region, id="region in another PD"),
        pytest.param(_other_pd_window, id="window in another PD"),
        pytest.param(_other_pd_both, id="queue pair in another PD"),
        pytest.param(_region(ALL), id="region without MW_BIND"),
        pytest.param(_region(ALL | MW_BIND | ZERO_BASED), id="zero-based region"),
        pytest.param(_region(READ | MW_BIND), id="REMOTE_WRITE without LOCAL_WRITE"),
        pytest.param(asks(length=0), id="type 2 of no length"),
        pytest.param(asks(offset=8192 - 63), id="one byte past the end"),
        pytest.param(asks(offset=-1), id="one byte before the start"),
        pytest.param(asks(length=(1 << 64) - 1), id="2^64-1 bytes"),
        pytest.param(asks(access=LOCAL_WRITE), id="a local right"),
        pytest.param(asks(key=0x100), id="another index"),
        pytest.param(_deregistered, id="region deregistered"),
        pytest.param(_deallocated, id="window deallocated"),
        pytest.param(_bound, id="bound already"),
    ],
)
@pytest.mark.parametrize("flags", [SendFlags(0), SendFlags.IBV_SEND_SIGNALED])
def test_a_refused_bind_ends_the_pair(refusal: Refusal, flags: SendFlags) -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    mr, mw = bindable(b), b.device.alloc_mw(b.pd, SECOND)
    request = refusal(b, mr, mw)
    before = mr.windows
    b.post(WROpcode.IBV_WR_BIND_MW, wr_id=1, flags=flags, bind_mw=request)
    b.post(WROpcode.IBV_WR_RDMA_WRITE, b.sge(0, 8), wr_id=2, to=(a.mr, 0))
    fabric.run()
    assert statuses(b.sends()) == [(1, BIND_ERR), (2, WCStatus.IBV_WC_WR_FLUSH_ERR)]
    assert b.qp.state is QPState.IBV_QPS_ERR
    assert fabric.log == []
    assert mr.windows == before


def test_the_bind_call_for_each_type() -> None:
    fabric = connect()
    b = fabric.b
    mr = bindable(b)
    first, second = (b.device.alloc_mw(b.pd, kind) for kind in (FIRST, SECOND))
    info = BindInfo(mr, mr.va, 64, WRITE)
    with pytest.raises(QPError, match="type 2"):
        b.qp.bind_mw(second, 1, info)
    work = SendWR(1, WROpcode.IBV_WR_BIND_MW, bind_mw=BindMW(first, first.rkey, info))
    with pytest.raises(QPError, match="type 1"):
        b.qp.post_send(work)
    with pytest.raises(QPError, match="bind_mw"):
        b.post(WROpcode.IBV_WR_BIND_MW)


def test_a_region_stays_while_windows_are_bound_and_a_domain_while_they_exist() -> None:
    fabric = connect()
    b = fabric.b
    pd = b.device.alloc_pd()
    mw = b.device.alloc_mw(pd, FIRST)
    with pytest.raises(PDInUseError):
        pd.dealloc()
    b.device.dealloc_mw(mw)
    pd.dealloc()
    mr, mw = bindable(b), b.device.alloc_mw(b.pd, SECOND, name="w")
    rkey = bind(b, mw, mr)
    fabric.run()
    with pytest.raises(RegionInUseError, match="1 windows"):
        b.device.dereg_mr(mr)
    assert write(fabric, mr.va, rkey) is OK
    b.device.dealloc_mw(mw)
    with pytest.raises(ValueError, match="not allocated"):
        b.device.dealloc_mw(mw)
    b.device.dereg_mr(mr)
    assert write(fabric, mr.va, rkey) is REFUSED
    assert causes(b) == [(Cause.STATE,)]


def test_a_zero_based_window_counts_from_its_own_start() -> None:
    fabric = connect()
    b = fabric.b
    mr, mw = bindable(b), b.device.alloc_mw(b.pd, SECOND)
    rkey = bind(b, mw, mr, 1000, 64, WRITE | ZERO_BASED)
    fabric.run()
    assert write(fabric, 8, rkey, 56) is OK
    assert mr.read(1000, 72) == bytes(8) + b"\xa5" * 56 + bytes(8)


def test_a_destroyed_queue_pair_takes_its_windows_along() -> None:
    target = opened("window")
    b = target.fabric.b
    b.device.destroy_qp(b.qp)
    assert target.mr.windows == 0
    b.device.dereg_mr(target.mr)
