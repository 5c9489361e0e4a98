"""Memory windows: a key for a part of a region, with rights of its own ([IBTA] 10.6.7)."""

from dataclasses import dataclass

from rocemu.protection.access import format_access
from rocemu.protection.mr import MemoryRegion
from rocemu.protection.pd import ProtectionDomain
from rocemu.verbs import AccessFlags, MWType

__all__ = ["BindError", "BindInfo", "MemoryWindow", "check_bind"]

_A = AccessFlags
_WRITES = _A.IBV_ACCESS_REMOTE_WRITE | _A.IBV_ACCESS_REMOTE_ATOMIC
_ALLOWED = (
    _WRITES
    | _A.IBV_ACCESS_REMOTE_READ
    | _A.IBV_ACCESS_FLUSH_GLOBAL
    | _A.IBV_ACCESS_FLUSH_PERSISTENT
    | _A.IBV_ACCESS_ZERO_BASED
)


class BindError(ValueError):
    """A window, region or key does not allow the work request; ``str()`` says why."""


class MemoryWindow:
    """A window of a protection domain; ``rkey`` is 0 until :meth:`ProtectionTable.alloc_mw`."""

    __slots__ = ("mr", "name", "pd", "rkey", "type")

    def __init__(self, pd: ProtectionDomain, mw_type: MWType, *, name: str = "") -> None:
        self.pd = pd
        self.type = MWType(mw_type)
        self.name = name
        self.rkey = 0
        self.mr: MemoryRegion | None = None
        """The region that it is bound to."""

    def __repr__(self) -> str:
        return f"MemoryWindow({self.type.name}, rkey={self.rkey:#010x}, pd={self.pd.handle})"


@dataclass(frozen=True, slots=True)
class BindInfo:
    """What a window is to open (``ibv_mw_bind_info``): ``length`` bytes of ``mr`` at ``addr``."""

    mr: MemoryRegion
    addr: int
    length: int
    access: AccessFlags


def check_bind(mw: MemoryWindow, info: BindInfo, pd: int) -> None:
    """Raise :class:`BindError` unless ``mw`` may open ``info`` for a queue pair of domain ``pd``.

    The window's rights do not need the region's remote ones ([IBTA] 10.6.7.2; ``man ibv_bind_mw``).
    """
    mr, access = info.mr, info.access
    offset = info.addr - mr.va
    if not pd == mw.pd.handle == mr.pd.handle:
        raise BindError(f"QP in PD {pd}, MW in PD {mw.pd.handle}, MR in PD {mr.pd.handle}")
    if not mr.access & _A.IBV_ACCESS_MW_BIND:
        raise BindError("the region lacks IBV_ACCESS_MW_BIND")
    if mr.access & _A.IBV_ACCESS_ZERO_BASED:
        raise BindError("the region is zero-based")
    if odd := AccessFlags(int(access) & ~int(_ALLOWED)):
        raise BindError(f"a window cannot have {format_access(odd)}")
    if access & _A.IBV_ACCESS_ZERO_BASED and mw.type is MWType.IBV_MW_TYPE_1:
        raise BindError("a window of type 1 cannot be zero-based")
    if access & _WRITES and not mr.access & _A.IBV_ACCESS_LOCAL_WRITE:
        raise BindError(f"{format_access(access & _WRITES)} requires local_write of the region")
    if (offset < 0) | (info.length > mr.length - offset):
        raise BindError(f"{info.addr:#x}+{info.length} outside {mr.va:#x}+{mr.length}")
