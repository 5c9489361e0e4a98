"""The protection table (MPT): from a key to what it opens, at a cost that does not grow."""

from collections import deque

from rocemu.protection.cache import KeyCache
from rocemu.protection.check import Access, Verdict, check
from rocemu.protection.entry import EntryState, KeyKind, MPTEntry
from rocemu.protection.keys import KeyGenerator, OsKeys, key_index
from rocemu.protection.mr import MemoryRegion, RegistrationError

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
            )
        mr.pd.users += 1

    def deregister(self, mr: MemoryRegion) -> None:
        """Take back both keys.  When this returns, no access through them is granted.

        The buffer and ``mr`` itself stay as they are.  Raises ValueError when the region is not
        registered here.
        """
        entries = [self._table.get(key_index(key)) for key in (mr.lkey, mr.rkey)]
        live = [entry for entry in entries if entry is not None and entry.mr is mr]
        if not live:
            raise ValueError(f"{mr!r} is not registered here")
        for entry in live:
            index = key_index(entry.key)
            entry.state = EntryState.WITHDRAWN
            entry.mr = None
            self.cache.invalidate(index)
            self._withdrawn.append(index)
        while len(self._withdrawn) > self._remembered:
            forgotten = self._withdrawn.popleft()
            self.cache.invalidate(forgotten)
            del self._table[forgotten]
        mr.pd.users -= 1

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
        """Take a key away at its holder's wish (SEND with Invalidate); False if it may not be.

        An ordinary region's key may not: only windows of type 2 and fast-registered regions are
        made for that ([IBTA] 10.6.5, 10.7.2.3), and neither exists here yet.
        """
        return False

    def entries(self) -> list[MPTEntry]:
        """The live entries, two to a region (lkey, rkey), in the order of registration."""
        return [entry for entry in self._table.values() if entry.mr is not None]

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
