"""24-bit sequence arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.wire import psn_add, psn_diff

psns = st.integers(0, 0xFFFFFF)


@pytest.mark.parametrize(
    ("psn", "count", "result"),
    [(0xFFFFFF, 1, 0), (0xFFFFFE, 3, 1), (0, -1, 0xFFFFFF), (5, 1 << 24, 5)],
)
def test_addition_wraps(psn: int, count: int, result: int):
    assert psn_add(psn, count) == result


@pytest.mark.parametrize(
    ("a", "b", "ahead"),
    [
        (0, 0, 0),
        (1, 0xFFFFFF, 2),
        (0xFFFFFF, 1, -2),
        (0x7FFFFF, 0, 0x7FFFFF),
        (0x800000, 0, -0x800000),
    ],
)
def test_difference_is_signed(a: int, b: int, ahead: int):
    assert psn_diff(a, b) == ahead


@given(psns, st.integers(-(1 << 23), (1 << 23) - 1))
def test_difference_undoes_addition(psn: int, count: int):
    assert psn_diff(psn_add(psn, count), psn) == count
