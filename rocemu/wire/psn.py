"""24-bit sequence numbers: PSN and MSN wrap at 2^24 ([IBTA] 9.7.1)."""

PSN_MASK = 0xFFFFFF
_HALF = 0x800000


def psn_add(psn: int, count: int) -> int:
    """``psn`` moved on (or back) by ``count``, modulo 2^24."""
    return (psn + count) & PSN_MASK


def psn_diff(a: int, b: int) -> int:
    """How far ``a`` is ahead of ``b``, as a signed 24-bit number (-2^23 .. 2^23-1)."""
    return ((a - b + _HALF) & PSN_MASK) - _HALF
