"""An entry of the protection table: all that is known of one key."""

from dataclasses import dataclass, field
from enum import StrEnum

from rocemu.protection.mr import MemoryRegion
from rocemu.protection.mw import MemoryWindow
from rocemu.verbs import AccessFlags

__all__ = ["EntryState", "EntryType", "KeyKind", "MPTEntry"]


class KeyKind(StrEnum):
    """Which of a region's two keys it is."""

    LKEY = "lkey"
    RKEY = "rkey"


class EntryType(StrEnum):
    """What stands behind a key."""

    MR = "MR"
    FAST_MR = "fast-registered MR"
    MW1 = "type 1 MW"
    MW2B = "type 2B MW"


class EntryState(StrEnum):
    """Only a valid entry grants anything."""

    VALID = "valid"
    FREE = "free"
    """Allocated, and not registered or bound yet."""
    INVALID = "invalidated"
    """Free again: what it opened before is kept so that its use can be explained."""
    WITHDRAWN = "deregistered"
    """Known, but taken back by the owner; kept a while so that its use can be explained."""


@dataclass(slots=True, eq=False)
class MPTEntry:
    """One key's row: what it opens (``va``, ``length`` in bytes, ``access``) and to whom.

    An entry outlives its region for a while, so it keeps what :meth:`Verdict.describe` needs and
    lets go of ``mr``, and with it of the memory, when it is withdrawn.
    """

    key: int
    kind: KeyKind
    pd_handle: int
    va: int
    length: int
    access: AccessFlags
    mr: MemoryRegion | None = field(repr=False)
    name: str
    state: EntryState = EntryState.VALID
    qpn: int | None = None
    """The one queue pair that may use the key; None is any of the domain."""
    type: EntryType = EntryType.MR
    offset: int = 0
    """Where in ``mr`` the entry's range begins: not 0 for windows only."""
    window: MemoryWindow | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """What it is called in a sentence: ``MR ro``, ``MW w``."""
        window = self.type is EntryType.MW1 or self.type is EntryType.MW2B
        return f"{'MW' if window else 'MR'} {self.name}"

    def place(self, va: int) -> int:
        """The offset in ``mr`` of address ``va`` of this entry."""
        return va - self.va + self.offset
