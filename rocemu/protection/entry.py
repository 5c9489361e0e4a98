"""An entry of the protection table: all that is known of one key."""

from dataclasses import dataclass, field
from enum import StrEnum

from rocemu.protection.mr import MemoryRegion
from rocemu.verbs import AccessFlags

__all__ = ["EntryState", "KeyKind", "MPTEntry"]


class KeyKind(StrEnum):
    """Which of a region's two keys it is."""

    LKEY = "lkey"
    RKEY = "rkey"


class EntryState(StrEnum):
    """Only a valid entry grants anything."""

    VALID = "valid"
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
