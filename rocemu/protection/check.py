"""The access check: one pure function, and a verdict that names every cause.

Whoever is refused learns only that; every condition is evaluated whatever the others say, so
neither the answer nor the way to it tells the causes apart.  The owner learns all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress, product
from typing import NamedTuple

from rocemu.protection.access import format_access
from rocemu.protection.entry import EntryState, KeyKind, MPTEntry
from rocemu.protection.keys import key_variant
from rocemu.protection.mr import MemoryRegion
from rocemu.verbs import AccessFlags

__all__ = ["Access", "Cause", "Verdict", "check"]


class Cause(StrEnum):
    """Why an access is refused, in the order in which causes are listed."""

    KEY = "key"
    """Never issued, the variant byte is wrong, or the other kind of key (an lkey as rkey)."""
    STATE = "state"
    """Issued, but not open: withdrawn or invalidated since, or never bound."""
    PD = "pd"
    """The queue pair is in another protection domain than the region."""
    PERMISSION = "permission"
    """The entry does not grant the kind of access."""
    BOUNDS = "bounds"
    """Not all of the range is inside the entry's."""
    QP = "qp"
    """The key is bound to another queue pair."""


class Access(NamedTuple):
    """An attempt on ``length`` bytes at ``va`` with ``key``, by QP ``qpn`` of PD ``pd`` (handle).

    ``needed`` are the rights that it takes: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC; from here
    LOCAL_WRITE to write and no right to read.  ``va`` and ``length`` are not negative.
    """

    key: int
    va: int
    length: int
    needed: AccessFlags
    pd: int
    qpn: int
    remote: bool
    """True for an rkey off the wire, False for an lkey of a scatter/gather element."""


@dataclass(slots=True)
class Verdict:
    """What became of an access: granted when there is no cause against it."""

    access: Access
    entry: MPTEntry | None
    """What the key's index led to, if anything; also for a refused access."""
    causes: tuple[Cause, ...]
    """All that applied, in the order of :class:`Cause`."""

    @property
    def ok(self) -> bool:
        """Whether the access is granted."""
        return not self.causes

    @property
    def mr(self) -> MemoryRegion | None:
        """The region behind the key; None when unknown, withdrawn, or nothing was looked up."""
        return None if self.entry is None else self.entry.mr

    def describe(self) -> str:
        """The causes with their numbers, for the owner's eyes only.

        As in ``permission: remote_write not in remote_read; MR ro``.
        """
        parts = list(self._details()) or ["granted"]
        if self.entry is not None and not self._names_mr():
            parts.append(self.entry.label)
        return "; ".join(parts)

    def _names_mr(self) -> bool:
        """Whether one of the details has the region's name in it."""
        assert self.entry is not None
        return Cause.STATE in self.causes or _wrong_kind(self.access, self.entry)

    def _details(self) -> Iterator[str]:
        access = self.access
        entry = self.entry
        if entry is None:
            if self.causes:
                yield f"{Cause.KEY}: {access.key:#010x} never issued"
            return
        for cause in self.causes:
            yield f"{cause}: {_DETAILS[cause](access, entry)}"


# Stands in for the entry of a key that leads nowhere, so that the same work is done for it.
_UNKNOWN = MPTEntry(
    key=0,
    kind=KeyKind.RKEY,
    pd_handle=0,
    va=0,
    length=0,
    access=AccessFlags(0),
    mr=None,
    name="",
)

# The causes for every outcome: whether the key leads nowhere, then one truth value per cause.  Of a
# key that leads nowhere nothing can be said but that.
_CAUSES = {
    (unknown, *faults): (Cause.KEY,) if unknown else tuple(compress(Cause, faults))
    for unknown, *faults in product((False, True), repeat=1 + len(Cause))
}

# An enum member is a slow look-up on the way of every packet, and so is an operator of IntFlag.
_VALID = EntryState.VALID
_RKEY = KeyKind.RKEY
_and = int.__and__
_invert = int.__invert__


def check(access: Access, entry: MPTEntry | None) -> Verdict:
    """Hold an access against the entry that its key's index leads to (None: to none).

    Pure, and free of short cuts: the same lines run whatever is wrong.  A range is inside when
    its offset is not negative and its length no more than what is left from there, so that
    nothing wraps at 2^64; registration sees to it that no entry passes 2^64.
    """
    wanted, va, length, needed, pd, qpn, remote = access
    unknown = entry is None
    known = _UNKNOWN if entry is None else entry
    offset = va - known.va
    key_fault = (wanted != known.key) | (remote != (known.kind is _RKEY))
    state_fault = known.state is not _VALID
    pd_fault = pd != known.pd_handle
    permission_fault = _and(needed, _invert(known.access)) != 0
    bounds_fault = (offset < 0) | (length > known.length - offset)
    qp_fault = (known.qpn is not None) & (qpn != known.qpn)
    outcome = (
        unknown,
        key_fault,
        state_fault,
        pd_fault,
        permission_fault,
        bounds_fault,
        qp_fault,
    )
    return Verdict(access, entry, _CAUSES[outcome])


def _wrong_kind(access: Access, entry: MPTEntry) -> bool:
    return access.remote != (entry.kind is KeyKind.RKEY)


def _key_detail(access: Access, entry: MPTEntry) -> str:
    details = []
    if access.key != entry.key:
        presented, issued = key_variant(access.key), key_variant(entry.key)
        details.append(f"variant byte {presented:#04x}, issued with {issued:#04x}")
    if _wrong_kind(access, entry):
        details.append(f"{access.key:#010x} is the {entry.kind} of {entry.label}")
    return ", ".join(details)


def _permission_detail(access: Access, entry: MPTEntry) -> str:
    missing = _and(access.needed, _invert(entry.access))
    return f"{format_access(AccessFlags(missing))} not in {format_access(entry.access)}"


_WAS = {state: f"was {state}" for state in EntryState} | {EntryState.FREE: "is free"}

_DETAILS: dict[Cause, Callable[[Access, MPTEntry], str]] = {
    Cause.KEY: _key_detail,
    Cause.STATE: lambda access, entry: f"{entry.label} {_WAS[entry.state]}",
    Cause.PD: lambda access, entry: (
        f"QP in PD {access.pd}, {entry.label[:2]} in PD {entry.pd_handle}"
    ),
    Cause.PERMISSION: _permission_detail,
    Cause.BOUNDS: lambda access, entry: (
        f"{access.va:#x}+{access.length} outside {entry.va:#x}+{entry.length}"
    ),
    Cause.QP: lambda access, entry: f"QP {access.qpn}, bound to QP {entry.qpn}",
}
