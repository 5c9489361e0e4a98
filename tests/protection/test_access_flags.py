"""Access flags as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.protection import SUPPORTED_ACCESS, format_access, parse_access
from rocemu.verbs import AccessFlags

FLAGS = [flag for flag in AccessFlags if flag & SUPPORTED_ACCESS]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("local_write", 1),
        ("remote_write", 2),
        ("remote_read", 4),
        ("remote_atomic", 8),
        ("mw_bind", 16),
        ("zero_based", 32),
        ("flush_global", 256),
        ("flush_persistent", 512),
        ("relaxed_ordering", 1 << 20),
        ("remote_read,local_write", 5),
        (" Remote_Read , LOCAL_WRITE ", 5),
        ("remote_read,remote_read", 4),
        ("none", 0),
    ],
)
def test_parse(text: str, value: int) -> None:
    assert parse_access(text) == value


def test_format_orders_by_value() -> None:
    assert format_access(AccessFlags(0b1101)) == "local_write,remote_read,remote_atomic"


def test_format_of_nothing_and_of_unknown_bits() -> None:
    assert format_access(AccessFlags(0)) == "none"
    assert format_access(AccessFlags(4 | 1 << 12)) == "remote_read,0x1000"


@given(st.sets(st.sampled_from(FLAGS)))
def test_parse_undoes_format(flags: set[AccessFlags]) -> None:
    word = AccessFlags(sum(flags))
    assert parse_access(format_access(word)) == word


@pytest.mark.parametrize("text", ["", "read", "remote_read,", "remote_read;local_write", "4"])
def test_a_wrong_name_is_told_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"access flag '.*': allowed are local_write, remote_wri"):
        parse_access(text)


@pytest.mark.parametrize("text", ["on_demand", "hugetlb", "none,remote_read"])
def test_what_can_not_be_registered_can_not_be_asked_for(text: str) -> None:
    with pytest.raises(ValueError, match="allowed are"):
        parse_access(text)
