"""Requests that are missing: passed over, come late, or sent again after all."""

from rocemu.audit.exchange import MOMENT, Exchange, Gap
from rocemu.wire import PSN_MASK

__all__ = ["fill_gaps", "filled", "skip"]


def skip(x: Exchange, psn: int, number: int, time: int) -> None:
    """The requester is ahead of what was seen of it."""
    first = x.next or 0
    damaged = [x.damaged[p & PSN_MASK] for p in range(first, psn) if p & PSN_MASK in x.damaged]
    gap = Gap(first, psn - 1, x.last_number, number, time, damaged[0] if damaged else 0)
    x.gaps.append(gap)
    x.open, x.left, x.base = -1, None, None
    x.next = psn


def fill_gaps(x: Exchange, psn: int, number: int) -> None:
    """A PSN that was missing is sent again: so it was lost, not missed by the capture."""
    for gap in [gap for gap in x.gaps if gap.first <= psn <= gap.last]:
        x.gaps.remove(gap)
        x.report("psn-gap", (*gap.packets, number), f"{gap}; sent from packet {number} on")


def filled(x: Exchange, psn: int, number: int, time: int) -> bool:
    """Whether a PSN of a gap came late: alone, soon, and not because anyone asked."""
    for gap in x.gaps:
        if gap.first <= psn <= gap.last and x.nak is None and time - gap.time < MOMENT:
            x.report(
                "reordered",
                (gap.number, number),
                f"PSN {psn & PSN_MASK:#08x} comes {(time - gap.time) / 1000:g} us behind "
                f"packet {gap.number}, which follows it",
            )
            x.gaps.remove(gap)
            for first, last in ((gap.first, psn - 1), (psn + 1, gap.last)):
                if first <= last:
                    x.gaps.append(Gap(first, last, gap.before, gap.number, gap.time, gap.damaged))
            return True
    return False
