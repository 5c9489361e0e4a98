"""Gather and scatter: local memory as work requests name it, every touch judged by its lkey."""

from collections.abc import Sequence

from rocemu.protection import Access, ProtectionDomain, ProtectionTable, Verdict
from rocemu.transport.work import SGE
from rocemu.verbs import AccessFlags

__all__ = ["LocalMemory"]

_READ = AccessFlags(0)
_WRITE = AccessFlags.IBV_ACCESS_LOCAL_WRITE


class LocalMemory:
    """The memory that one queue pair's own work requests may touch."""

    def __init__(self, table: ProtectionTable, pd: ProtectionDomain, qp_num: int) -> None:
        self._table = table
        self._pd = pd.handle
        self._qp_num = qp_num

    def authorize(self, addr: int, length: int, lkey: int, needed: AccessFlags) -> Verdict:
        """The verdict on one local access."""
        return self._table.authorize(
            Access(lkey, addr, length, needed, self._pd, self._qp_num, remote=False)
        )

    def refusal(self, sg_list: Sequence[SGE], *, write: bool) -> Verdict | None:
        """The first refused element of a whole list, None when all are allowed."""
        needed = _WRITE if write else _READ
        for sge in sg_list:
            if sge.length:
                verdict = self.authorize(sge.addr, sge.length, sge.lkey, needed)
                if not verdict.ok:
                    return verdict
        return None

    def gather(self, sg_list: Sequence[SGE], offset: int, length: int) -> bytes | Verdict:
        """``length`` bytes from ``offset`` of a list on, or the verdict that refused a part."""
        parts: list[bytes | memoryview] = []
        for sge, start, count in _pieces(sg_list, offset, length):
            verdict = self.authorize(sge.addr + start, count, sge.lkey, _READ)
            if not verdict.ok or verdict.entry is None or verdict.entry.mr is None:
                return verdict
            region = verdict.entry
            parts.append(verdict.entry.mr.view(sge.addr + start - region.va, count))
        return b"".join(parts)

    def scatter(
        self, sg_list: Sequence[SGE], offset: int, data: bytes | memoryview
    ) -> Verdict | None:
        """Put ``data`` at ``offset`` of a list; the verdict when a part was refused, else None.

        The list is long enough.  All parts are judged before the first byte is written.
        """
        targets = []
        for sge, start, count in _pieces(sg_list, offset, len(data)):
            verdict = self.authorize(sge.addr + start, count, sge.lkey, _WRITE)
            if not verdict.ok or verdict.entry is None or verdict.entry.mr is None:
                return verdict
            targets.append((verdict.entry.mr, sge.addr + start - verdict.entry.va, count))
        position = 0
        for region, place, count in targets:
            region.write(place, data[position : position + count])
            position += count
        return None


def _pieces(sg_list: Sequence[SGE], offset: int, length: int) -> list[tuple[SGE, int, int]]:
    """Which bytes of which elements make up a range: (element, start within it, count)."""
    pieces = []
    for sge in sg_list:
        if not length:
            break
        if offset >= sge.length:
            offset -= sge.length
            continue
        count = min(sge.length - offset, length)
        pieces.append((sge, offset, count))
        offset, length = 0, length - count
    return pieces
