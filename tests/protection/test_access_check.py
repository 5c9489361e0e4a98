"""check(): every cause is found, alone and together, and all look the same from outside."""

import sys
from itertools import combinations
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.protection import Access, Cause, EntryState, KeyKind, MPTEntry, check
from rocemu.verbs import AccessFlags

NONE = AccessFlags(0)
LOCAL_WRITE = AccessFlags.IBV_ACCESS_LOCAL_WRITE
REMOTE_WRITE = AccessFlags.IBV_ACCESS_REMOTE_WRITE
REMOTE_READ = AccessFlags.IBV_ACCESS_REMOTE_READ
REMOTE_ATOMIC = AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
RIGHTS = (LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC)
TOP = 1 << 64

ALL_SETS = [
    frozenset(causes) for size in range(len(Cause) + 1) for causes in combinations(Cause, size)
]


def entry(**changes: Any) -> MPTEntry:
    fields: dict[str, Any] = {
        "key": 0x12345634,
        "kind": KeyKind.RKEY,
        "pd_handle": 1,
        "va": 0x1000,
        "length": 4096,
        "access": REMOTE_READ,
        "mr": None,
        "name": "ro",
        "state": EntryState.VALID,
        "qpn": None,
    }
    return MPTEntry(**(fields | changes))


def access(**changes: Any) -> Access:
    fields: dict[str, Any] = {
        "key": 0x12345634,
        "va": 0x1000,
        "length": 8,
        "needed": REMOTE_READ,
        "pd": 1,
        "qpn": 17,
        "remote": True,
    }
    return Access(**(fields | changes))


def faulty(causes: frozenset[Cause]) -> tuple[Access, MPTEntry]:
    """An access and an entry that are at odds in exactly the given ways."""
    return (
        access(
            key=0x12345612 if Cause.KEY in causes else 0x12345634,
            pd=2 if Cause.PD in causes else 1,
            needed=REMOTE_WRITE if Cause.PERMISSION in causes else REMOTE_READ,
            length=8192 if Cause.BOUNDS in causes else 8,
        ),
        entry(
            state=EntryState.WITHDRAWN if Cause.STATE in causes else EntryState.VALID,
            qpn=18 if Cause.QP in causes else 17,
        ),
    )


@pytest.mark.parametrize("causes", ALL_SETS, ids=lambda causes: "+".join(sorted(causes)) or "none")
def test_every_set_of_coinciding_faults_is_named_in_full_and_in_order(
    causes: frozenset[Cause],
) -> None:
    verdict = check(*faulty(causes))
    assert set(verdict.causes) == causes
    assert list(verdict.causes) == [cause for cause in Cause if cause in causes]
    assert verdict.ok is (not causes)


def test_causes_have_the_documented_order() -> None:
    assert [str(cause) for cause in Cause] == ["key", "state", "pd", "permission", "bounds", "qp"]


def test_of_a_key_that_leads_nowhere_only_the_key_is_reported() -> None:
    wrong_in_every_way = access(key=0xDEADBEEF, va=TOP - 1, length=TOP, pd=9, needed=REMOTE_ATOMIC)
    verdict = check(wrong_in_every_way, None)
    assert verdict.causes == (Cause.KEY,)
    assert not verdict.ok
    assert verdict.entry is None
    assert verdict.mr is None


def test_key_zero_is_no_way_in() -> None:
    # The dummy entry that stands in for an unknown key must not match anything.
    nothing = access(key=0, va=0, length=0, needed=NONE, pd=0, qpn=0)
    assert check(nothing, None).causes == (Cause.KEY,)


def lines_run(access: Access, entry: MPTEntry | None) -> list[int]:
    lines: list[int] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not check.__code__:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check(access, entry)
    finally:
        sys.settrace(before)
    return lines


def test_the_same_lines_run_whatever_is_wrong() -> None:
    granted = lines_run(access(), entry())
    assert len(granted) > 5
    for causes in ALL_SETS:
        assert lines_run(*faulty(causes)) == granted, causes
    assert lines_run(access(key=0xDEADBEEF), None) == granted
    assert lines_run(access(remote=False), entry()) == granted
    assert lines_run(access(remote=False), entry(kind=KeyKind.LKEY)) == granted


# --- bounds


@pytest.mark.parametrize(
    ("va", "length", "inside"),
    [
        (0x1000, 4096, True),
        (0x1FFF, 1, True),
        (0x1000, 4097, False),
        (0x1001, 4096, False),
        (0x0FFF, 1, False),
        (0x0FFF, 4096, False),
        (0x2000, 1, False),
        (0, 0x3000, False),
        (TOP - 0x400, 0x400, False),
        (TOP - 1, 0x1002, False),
    ],
)
def test_a_range_must_be_inside_to_the_last_byte(va: int, length: int, inside: bool) -> None:
    expected = () if inside else (Cause.BOUNDS,)
    assert check(access(va=va, length=length), entry()).causes == expected


@pytest.mark.parametrize("needed", [REMOTE_WRITE, REMOTE_READ])
def test_a_region_up_to_2_64_is_legal_to_its_last_byte_and_no_further(needed: AccessFlags) -> None:
    top = entry(va=TOP - 0x400, length=0x400, access=LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ)
    for va, length, causes in (
        (TOP - 0x400, 0x400, ()),
        (TOP - 1, 1, ()),
        (TOP - 1, 2, (Cause.BOUNDS,)),
        (TOP - 0x400, 0x401, (Cause.BOUNDS,)),
        (TOP - 0x3FF, 0x400, (Cause.BOUNDS,)),
        (0, 1, (Cause.BOUNDS,)),
    ):
        assert check(access(va=va, length=length, needed=needed), top).causes == causes


def test_an_address_that_wraps_to_an_existing_one_stays_outside() -> None:
    # In 64-bit arithmetic 0xFFFFFFFFFFFFFC00 + 0x400 is 0, and 0 is inside.
    low = entry(va=0, length=4096)
    assert check(access(va=TOP - 0x400, length=0x400), low).causes == (Cause.BOUNDS,)
    assert check(access(va=TOP - 0x400, length=0x800), low).causes == (Cause.BOUNDS,)


near_an_end = st.one_of(
    st.integers(0, 300), st.integers(TOP - 300, TOP - 1), st.integers(0, TOP - 1)
)


@given(start=near_an_end, size=st.integers(0, 300), va=near_an_end, length=st.integers(1, 300))
def test_bounds_agree_with_a_set_of_bytes(start: int, size: int, va: int, length: int) -> None:
    size = min(size, TOP - start)
    covered = set(range(start, start + size))
    expected = set(range(va, va + length)) <= covered
    verdict = check(access(va=va, length=length), entry(va=start, length=size))
    assert (Cause.BOUNDS not in verdict.causes) is expected


@given(
    start=st.integers(0, TOP - 1),
    size=st.integers(0, TOP),
    before=st.integers(-3, 3),
    after=st.integers(-3, 3),
)
def test_bounds_at_the_edges_of_any_region(start: int, size: int, before: int, after: int) -> None:
    size = min(size, TOP - start)
    va = start + before
    length = size + after - before
    if va < 0 or length < 1:
        return
    expected = before >= 0 and after <= 0
    verdict = check(access(va=va, length=length), entry(va=start, length=size))
    assert (Cause.BOUNDS not in verdict.causes) is expected


# --- permission


flag_sets = st.sets(st.sampled_from(RIGHTS))


@given(needed=flag_sets, granted=flag_sets)
def test_every_right_that_is_needed_must_be_there(
    needed: set[AccessFlags], granted: set[AccessFlags]
) -> None:
    # Older Soft-RoCE let any overlapping bit pass.
    verdict = check(
        access(needed=AccessFlags(sum(needed))), entry(access=AccessFlags(sum(granted)))
    )
    assert (Cause.PERMISSION not in verdict.causes) is (needed <= granted)


def test_reading_at_home_needs_no_right_and_writing_local_write() -> None:
    local = {"remote": False}
    source = entry(kind=KeyKind.LKEY, access=NONE)
    assert check(access(needed=NONE, **local), source).ok
    assert check(access(needed=LOCAL_WRITE, **local), source).causes == (Cause.PERMISSION,)
    target = entry(kind=KeyKind.LKEY, access=LOCAL_WRITE)
    assert check(access(needed=LOCAL_WRITE, **local), target).ok


# --- key


@given(key=st.integers(0, 0xFFFFFFFF))
def test_all_32_bits_of_the_key_count(key: int) -> None:
    assert (Cause.KEY not in check(access(key=key), entry()).causes) is (key == 0x12345634)


@pytest.mark.parametrize("bit", range(32))
def test_one_wrong_bit_is_a_wrong_key(bit: int) -> None:
    assert check(access(key=0x12345634 ^ 1 << bit), entry()).causes == (Cause.KEY,)


@pytest.mark.parametrize("remote", [True, False])
@pytest.mark.parametrize("kind", list(KeyKind))
def test_an_rkey_serves_only_from_afar_and_an_lkey_only_at_home(
    remote: bool, kind: KeyKind
) -> None:
    verdict = check(access(remote=remote), entry(kind=kind))
    fits = (kind is KeyKind.RKEY) is remote
    assert verdict.causes == (() if fits else (Cause.KEY,))


# --- what the owner is told


@pytest.mark.parametrize(
    ("access", "entry", "text"),
    [
        (access(), entry(), "granted; MR ro"),
        (
            access(needed=REMOTE_WRITE),
            entry(),
            "permission: remote_write not in remote_read; MR ro",
        ),
        (
            access(needed=REMOTE_WRITE | REMOTE_READ),
            entry(),
            "permission: remote_write not in remote_read; MR ro",
        ),
        (access(), entry(access=NONE), "permission: remote_read not in none; MR ro"),
        (access(length=8192), entry(), "bounds: 0x1000+8192 outside 0x1000+4096; MR ro"),
        (access(pd=2), entry(), "pd: QP in PD 2, MR in PD 1; MR ro"),
        (access(), entry(qpn=18), "qp: QP 17, bound to QP 18; MR ro"),
        (access(key=0xDEADBEEF), None, "key: 0xdeadbeef never issued"),
        (access(key=0x00000100), None, "key: 0x00000100 never issued"),
        (access(key=0x12345602), entry(), "key: variant byte 0x02, issued with 0x34; MR ro"),
        (access(), entry(kind=KeyKind.LKEY), "key: 0x12345634 is the lkey of MR ro"),
        (access(remote=False), entry(), "key: 0x12345634 is the rkey of MR ro"),
        (access(), entry(state=EntryState.WITHDRAWN), "state: MR ro was deregistered"),
        (
            access(pd=2, needed=REMOTE_WRITE),
            entry(name="in PD"),
            "pd: QP in PD 2, MR in PD 1; permission: remote_write not in remote_read; MR in PD",
        ),
        (
            access(key=0x12345612, length=8192),
            entry(kind=KeyKind.LKEY, state=EntryState.WITHDRAWN),
            "key: variant byte 0x12, issued with 0x34, 0x12345612 is the lkey of MR ro; "
            "state: MR ro was deregistered; bounds: 0x1000+8192 outside 0x1000+4096",
        ),
    ],
)
def test_describe_gives_the_numbers_of_every_cause(
    access: Access, entry: MPTEntry | None, text: str
) -> None:
    assert check(access, entry).describe() == text


@pytest.mark.parametrize("causes", ALL_SETS[1:], ids=lambda causes: "+".join(sorted(causes)))
def test_describe_mentions_every_cause_once_and_the_region_once(causes: frozenset[Cause]) -> None:
    text = check(*faulty(causes)).describe()
    told = [part.split(":")[0] for part in text.split("; ") if ":" in part]
    assert told == [cause for cause in Cause if cause in causes]
    assert text.count("MR ro") == 1
