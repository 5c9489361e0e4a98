"""A side that exposes windows and fast-registered regions, for tests."""

from dataclasses import dataclass

from rocemu.protection import BindInfo, FastRegion, MemoryRegion, MemoryWindow
from rocemu.transport import BindMW, RegMR
from rocemu.verbs import AccessFlags, MWType, WROpcode
from tests.transport.fabric import ALL, Fabric, Side, connect

WRITE = AccessFlags.IBV_ACCESS_REMOTE_WRITE
READ = AccessFlags.IBV_ACCESS_REMOTE_READ
LOCAL_WRITE = AccessFlags.IBV_ACCESS_LOCAL_WRITE
MW_BIND = AccessFlags.IBV_ACCESS_MW_BIND
FIRST, SECOND = MWType.IBV_MW_TYPE_1, MWType.IBV_MW_TYPE_2


def bindable(side: Side, size: int = 8192, access: AccessFlags = ALL | MW_BIND) -> MemoryRegion:
    return side.device.reg_mr(side.pd, size, access, name="under")


def bind(
    side: Side,
    mw: MemoryWindow,
    mr: MemoryRegion,
    offset: int = 0,
    length: int = 4096,
    access: AccessFlags = WRITE | READ,
    *,
    wr_id: int = 1,
    key: int = 0x5A,
) -> int:
    """Post a bind of either type; the key that it gives."""
    info = BindInfo(mr, mr.va + offset, length, access)
    if mw.type is FIRST:
        return side.qp.bind_mw(mw, wr_id, info)
    rkey = mw.rkey & ~0xFF | key
    side.post(WROpcode.IBV_WR_BIND_MW, wr_id=wr_id, bind_mw=BindMW(mw, rkey, info))
    return rkey


def register(
    side: Side, mr: FastRegion, key: int, access: AccessFlags = ALL, *, wr_id: int = 1
) -> None:
    rkey = mr.rkey & ~0xFF | key
    side.post(WROpcode.IBV_WR_REG_MR, wr_id=wr_id, reg_mr=RegMR(mr, rkey, access))


@dataclass
class Opened:
    """A key of side ``b`` that may be invalidated: 8192 bytes of ``memory`` at ``va``."""

    fabric: Fabric
    mr: MemoryRegion
    va: int
    rkey: int

    @property
    def memory(self) -> memoryview:
        return self.mr.memory


def opened(kind: str, fabric: Fabric | None = None) -> Opened:
    """A fabric whose side ``b`` opened a ``window`` or a ``fast`` region, completions taken."""
    fabric = fabric or connect()
    b = fabric.b
    if kind == "window":
        mr = bindable(b)
        mw = b.device.alloc_mw(b.pd, SECOND, name="w")
        rkey = bind(b, mw, mr, length=8192, access=WRITE | READ | ALL & ~LOCAL_WRITE)
    else:
        fast = b.device.alloc_mr(b.pd, 8192, name="fast")
        fast.map(bytearray(8192))
        register(b, fast, 0x77)
        mr = fast
    fabric.run()
    assert [wc.status for wc in b.sends()] == [0]
    return Opened(fabric, mr, mr.va, rkey if kind == "window" else mr.rkey)
