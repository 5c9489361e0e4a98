"""The key cache: the table's entries that were used last, as adapters keep them on the chip."""

from collections import OrderedDict

from rocemu.protection.entry import MPTEntry

__all__ = ["KeyCache"]


class KeyCache:
    """At most ``size`` entries by key index; the one unused longest makes room (LRU).

    ``hits``, ``misses`` and ``evictions`` count.  A miss says nothing about the key.
    """

    __slots__ = ("_entries", "evictions", "hits", "misses", "size")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"key cache size {size}: at least 1")
        self.size = size
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._entries: OrderedDict[int, MPTEntry] = OrderedDict()

    def get(self, index: int) -> MPTEntry | None:
        """The entry, which then counts as just used, or None for a miss."""
        entry = self._entries.get(index)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(index)
        return entry

    def put(self, index: int, entry: MPTEntry) -> None:
        """Keep an entry that :meth:`get` missed."""
        self._entries[index] = entry
        if len(self._entries) > self.size:
            self._entries.popitem(last=False)
            self.evictions += 1

    def invalidate(self, index: int) -> None:
        """Drop an entry, if it is here; when this returns, no :meth:`get` finds it."""
        self._entries.pop(index, None)

    def __contains__(self, index: int) -> bool:
        return index in self._entries

    def __len__(self) -> int:
        return len(self._entries)
