"""The protection table (MPT): from a key to what it opens, at a cost that does not grow."""

from collections import deque

from rocemu.protection.cache import KeyCache
from rocemu.protection.check import Access, Verdict, check
from rocemu.protection.entry import EntryState, EntryType, KeyKind, MPTEntry
from rocemu.protection.keys import KeyGenerator, OsKeys, key_index, key_variant
from rocemu.protection.mr import (
    Buffer,
    FastRegion,
    MemoryRegion,
    RegionInUseError,
    RegistrationError,
)
from rocemu.protection.mw import BindError, BindInfo, MemoryWindow, check_bind
from rocemu.protection.pd import ProtectionDomain
from rocemu.verbs import AccessFlags, MWType, ReregFlags

__all__ = ["EntryState", "KeyKind", "MPTEntry", "ProtectionTable"]

#: Half of all indices: a generator that draws at random finds a free one in two tries.
_MAX_ENTRIES = 1 << 23


class ProtectionTable:
    """All keys of a device: the live ones, and the last ``remembered`` withdrawn ones.

    A withdrawn key stays known for a while, so that its use is told from a guess; its index is
    not given out again before it is forgotten.  A :class:`KeyCache` of ``cache_size`` entries
    stands in front.
    """

    def __init__(
        self,
        keys: KeyGenerator | None = None,
        *,
        cache_size: int = 1024,
        remembered: int = 4096,
    ) -> None:
        self.cache = KeyCache(cache_size)
        self._keys = OsKeys() if keys is None else keys
        self._remembered = remembered
        self._table: dict[int, MPTEntry] = {}
        self._withdrawn: deque[int] = deque()
        self._bound: dict[int, set[int]] = {}  # QPN -> indices of the type 2 windows on it

    def register(self, mr: MemoryRegion, *, rkey: int | None = None) -> None:
        """Give a region its two keys and make it reachable; ``rkey`` is drawn when None.

        Raises :class:`RegistrationError`, and leaves table and region as they were, when it has
        keys already, its domain is deallocated, the table is full, or the index of ``rkey`` is 0
        or in use.
        """
        if mr.lkey:
            raise RegistrationError(f"{mr!r} was registered before")
        if mr.pd.deallocated:
            raise RegistrationError(f"PD {mr.pd.handle} was deallocated")
        if len(self._table) + 2 > _MAX_ENTRIES:
            raise RegistrationError(f"the table is full: {len(self._table)} keys")
        if rkey is not None and (key_index(rkey) == 0 or key_index(rkey) in self._table):
            raise RegistrationError(f"rkey {rkey:#010x}: its index is 0 or in use")
        chosen = None if rkey is None else key_index(rkey)
        lkey = self._keys.next_key(lambda index: index == chosen or index in self._table)
        if rkey is None:
            taken = key_index(lkey)
            rkey = self._keys.next_key(lambda index: index == taken or index in self._table)
        mr.lkey, mr.rkey = lkey, rkey
        fast = isinstance(mr, FastRegion)
        for key, kind in ((lkey, KeyKind.LKEY), (rkey, KeyKind.RKEY)):
            self._table[key_index(key)] = MPTEntry(
                key=key,
                kind=kind,
                pd_handle=mr.pd.handle,
                va=mr.va,
                length=mr.length,
                access=mr.access,
                mr=mr,
                name=mr.name or f"{lkey:#010x}",
                type=EntryType.FAST_MR if fast else EntryType.MR,
                state=EntryState.FREE if fast else EntryState.VALID,
            )
        mr.pd.users += 1

    def deregister(self, mr: MemoryRegion) -> None:
        """Take back both keys.  When this returns, no access through them is granted.

        The buffer and ``mr`` itself stay as they are.  Raises ValueError when the region is not
        registered here, :class:`RegionInUseError` while windows are bound to it.
        """
        entries = [self._table.get(key_index(key)) for key in (mr.lkey, mr.rkey)]
        live = [entry for entry in entries if entry is not None and entry.mr is mr]
        if not live:
            raise ValueError(f"{mr!r} is not registered here")
        if mr.windows:
            raise RegionInUseError(f"{mr!r}: {mr.windows} windows are bound to it")
        for entry in live:
            self._withdraw(entry)
        mr.pd.users -= 1

    def _withdraw(self, entry: MPTEntry) -> None:
        index = key_index(entry.key)
        entry.state = EntryState.WITHDRAWN
        entry.mr = None
        self.cache.invalidate(index)
        self._withdrawn.append(index)
        while len(self._withdrawn) > self._remembered:
            forgotten = self._withdrawn.popleft()
            self.cache.invalidate(forgotten)
            del self._table[forgotten]

    def reregister(
        self,
        mr: MemoryRegion,
        flags: ReregFlags,
        *,
        pd: ProtectionDomain | None = None,
        buffer: Buffer | int | None = None,
        va: int | None = None,
        access: AccessFlags | None = None,
    ) -> None:
        """Change what ``flags`` name of a region: as deregistered and registered, keys new.

        Raises what :meth:`deregister` and registration raise, ValueError when a flag's value is
        missing; the region is then as it was, keys included.
        """
        change = ReregFlags
        if not flags:
            raise ValueError("no flag says what to change")
        moved = bool(flags & change.IBV_REREG_MR_CHANGE_TRANSLATION)
        new_pd = pd if flags & change.IBV_REREG_MR_CHANGE_PD else mr.pd
        rights = access if flags & change.IBV_REREG_MR_CHANGE_ACCESS else mr.access
        memory = buffer if moved else mr.memory
        if new_pd is None or rights is None or memory is None:
            raise ValueError(f"{flags!r}: a value to change to is missing")
        if isinstance(mr, FastRegion):
            raise RegistrationError("a fast-registered region changes by its work requests")
        if new_pd.deallocated:
            raise RegistrationError(f"PD {new_pd.handle} was deallocated")
        if len(self._table) + 2 > _MAX_ENTRIES:
            raise RegistrationError(f"the table is full: {len(self._table)} keys")
        # A region that stops being zero-based needs an address, one that starts loses its own.
        zero = AccessFlags.IBV_ACCESS_ZERO_BASED
        where = va if moved else None if (mr.access | rights) & zero else mr.va
        other = MemoryRegion(new_pd, memory, rights, va=where)
        self.deregister(mr)
        mr.adopt(other, buffer=moved)
        mr.lkey = mr.rkey = 0
        self.register(mr)

    # ------------------------------------------------------------------ windows, fast registration

    def alloc_mw(self, mw: MemoryWindow) -> None:
        """Give a window its key; it opens nothing yet.  Raises as :meth:`register`."""
        if mw.rkey:
            raise RegistrationError(f"{mw!r} was allocated before")
        if mw.pd.deallocated:
            raise RegistrationError(f"PD {mw.pd.handle} was deallocated")
        if len(self._table) + 1 > _MAX_ENTRIES:
            raise RegistrationError(f"the table is full: {len(self._table)} keys")
        mw.rkey = self._keys.next_key(self._table.__contains__)
        first = mw.type is MWType.IBV_MW_TYPE_1
        self._table[key_index(mw.rkey)] = MPTEntry(
            key=mw.rkey,
            kind=KeyKind.RKEY,
            pd_handle=mw.pd.handle,
            va=0,
            length=0,
            access=AccessFlags(0),
            mr=None,
            name=mw.name or f"{mw.rkey:#010x}",
            state=EntryState.FREE,
            type=EntryType.MW1 if first else EntryType.MW2B,
            window=mw,
        )
        mw.pd.users += 1

    def _window(self, mw: MemoryWindow) -> MPTEntry:
        entry = self._table.get(key_index(mw.rkey))
        if entry is None or entry.window is not mw:
            raise BindError(f"{mw!r} is not allocated here")
        return entry

    def dealloc_mw(self, mw: MemoryWindow) -> None:
        """End a window, bound or not; when this returns its key opens nothing.

        Raises ValueError when it is not allocated here.
        """
        entry = self._window(mw)
        self._close(entry)
        entry.window = None
        self._withdraw(entry)
        mw.pd.users -= 1

    def bind(self, mw: MemoryWindow, rkey: int, info: BindInfo, pd: int, qpn: int) -> None:
        """Open ``mw`` with key ``rkey`` for domain ``pd``; type 2 for queue pair ``qpn`` alone.

        The index in ``rkey`` is the window's; its low byte is the poster's choice.  A window of
        type 1 may be bound anew, and closes with a length of 0.  Raises :class:`BindError` and
        changes nothing.
        """
        entry = self._window(mw)
        second = mw.type is MWType.IBV_MW_TYPE_2
        if key_index(rkey) != key_index(entry.key):
            raise BindError(f"key {rkey:#010x} has not the index of {entry.key:#010x}")
        if second and entry.state is EntryState.VALID:
            raise BindError(f"{mw!r} is bound: invalidate it first")
        if second and not info.length:
            raise BindError("a window of type 2 cannot be bound to no bytes")
        if not info.length and pd == mw.pd.handle:
            self._close(entry)
            entry.key = rkey
            return
        target = self._table.get(key_index(info.mr.rkey))
        if target is None or target.mr is not info.mr or target.state is not EntryState.VALID:
            raise BindError(f"{info.mr!r} is not registered")
        check_bind(mw, info, pd)
        self._close(entry)
        based = info.access & AccessFlags.IBV_ACCESS_ZERO_BASED
        entry.key = rkey
        if second:  # a later bind of a type 1 window may be posted already
            mw.rkey = rkey
        entry.va, entry.length, entry.access = 0 if based else info.addr, info.length, info.access
        entry.mr = mw.mr = info.mr
        entry.offset = info.addr - info.mr.va
        entry.qpn = qpn if second else None
        entry.state = EntryState.VALID
        info.mr.windows += 1
        if second:
            self._bound.setdefault(qpn, set()).add(key_index(rkey))

    def fast_register(self, mr: FastRegion, rkey: int, access: AccessFlags, pd: int) -> None:
        """Open a closed fast-registered region with ``access``; the low byte of both keys is new.

        Raises :class:`BindError` and changes nothing when it is open, of another domain, not
        allocated, ``rkey`` has another index, or the rights do not go together.
        """
        entries = [self._table.get(key_index(key)) for key in (mr.lkey, mr.rkey)]
        live = [entry for entry in entries if entry is not None and entry.mr is mr]
        if len(live) != 2:
            raise BindError(f"{mr!r} is not allocated here")
        if mr.open:
            raise BindError(f"{mr!r} is registered: invalidate it first")
        if pd != mr.pd.handle:
            raise BindError(f"QP in PD {pd}, MR in PD {mr.pd.handle}")
        if key_index(rkey) != key_index(mr.rkey):
            raise BindError(f"key {rkey:#010x} has not the index of {mr.rkey:#010x}")
        try:
            mr.check_rights(access)
        except RegistrationError as error:
            raise BindError(str(error)) from None
        mr.access, mr.open = access, True
        mr.lkey, mr.rkey = mr.lkey & ~0xFF | key_variant(rkey), rkey
        for entry, key in zip(live, (mr.lkey, mr.rkey), strict=True):
            entry.key, entry.access, entry.va, entry.length = key, access, mr.va, mr.length
            entry.state = EntryState.VALID

    def _close(self, entry: MPTEntry) -> None:
        """Take a window off its region, or close both keys of a fast-registered one."""
        if entry.state is not EntryState.VALID:
            return
        mr = entry.mr
        assert mr is not None
        if isinstance(mr, FastRegion) and entry.window is None:
            mr.open = False
            for key in (mr.lkey, mr.rkey):
                self._table[key_index(key)].state = EntryState.INVALID
            return
        entry.state, entry.mr = EntryState.INVALID, None
        mr.windows -= 1
        if entry.window is not None:
            entry.window.mr = None
        if entry.qpn is not None:
            self._bound[entry.qpn].discard(key_index(entry.key))

    def release_qp(self, qpn: int) -> None:
        """Close the type 2 windows bound to a queue pair that ends: its number may come again."""
        for index in list(self._bound.get(qpn, ())):
            self._close(self._table[index])
        self._bound.pop(qpn, None)

    # ------------------------------------------------------------------ use

    def lookup(self, key: int) -> MPTEntry | None:
        """What the key's index leads to, live or withdrawn; None when to nothing.

        Only the index counts here: :func:`check` holds the whole key against the entry.
        """
        index = key >> 8
        entry = self.cache.get(index)
        if entry is None:
            entry = self._table.get(index)
            if entry is not None:
                self.cache.put(index, entry)
        return entry

    def authorize(self, access: Access) -> Verdict:
        """The verdict on an access.

        An access of length 0 touches nothing, so its key and address are not looked at ([IBTA]
        C9-88): it is granted, with no entry.
        """
        if access.length == 0:
            return Verdict(access, None, ())
        return check(access, self.lookup(access.key))

    def invalidate(self, rkey: int, pd: int, qpn: int) -> bool:
        """Close a key (LOCAL_INV, or the peer's SEND with Invalidate); False if it may not be.

        Made for that are open windows of type 2 on this very queue pair, and open fast-registered
        regions of its domain without windows ([IBTA] 10.6.5, 10.7.2.3).  When this returns True no
        access by the key is granted.
        """
        entry = self.lookup(rkey)
        if entry is None or entry.mr is None:
            return False
        made_for_it = (
            entry.qpn == qpn
            if entry.type is EntryType.MW2B
            else entry.type is EntryType.FAST_MR and not entry.mr.windows
        )
        allowed = (
            made_for_it
            and entry.key == rkey
            and entry.kind is KeyKind.RKEY
            and entry.state is EntryState.VALID
            and entry.pd_handle == pd
        )
        if allowed:
            self._close(entry)
        return allowed

    def entries(self) -> list[MPTEntry]:
        """The entries not withdrawn, as they came: a region has two (lkey, rkey), a window one."""
        gone = EntryState.WITHDRAWN
        return [entry for entry in self._table.values() if entry.state is not gone]

    def counters(self) -> dict[str, int]:
        """How full the table and its cache are, and how the cache did."""
        return {
            "entries": len(self._table) - len(self._withdrawn),
            "remembered": len(self._withdrawn),
            "cache_entries": len(self.cache),
            "cache_hits": self.cache.hits,
            "cache_misses": self.cache.misses,
            "cache_evictions": self.cache.evictions,
        }
