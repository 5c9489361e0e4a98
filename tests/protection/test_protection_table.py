"""The table: registration, lookup through the cache, withdrawal, and the cases users hit."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.protection import (
    Access,
    Cause,
    KeyKind,
    MemoryRegion,
    ProtectionDomain,
    ProtectionTable,
    RegistrationError,
    SeededKeys,
    Verdict,
    check,
    key_index,
    mpt,
)
from rocemu.verbs import AccessFlags

NONE = AccessFlags(0)
LOCAL_WRITE = AccessFlags.IBV_ACCESS_LOCAL_WRITE
REMOTE_WRITE = AccessFlags.IBV_ACCESS_REMOTE_WRITE
REMOTE_READ = AccessFlags.IBV_ACCESS_REMOTE_READ
REMOTE_ATOMIC = AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
ALL = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
TOP = 1 << 64

# What each operation takes, of the region afar and of the one at home.
RIGHTS = {
    "WRITE": (REMOTE_WRITE, NONE),
    "READ": (REMOTE_READ, LOCAL_WRITE),
    "FETCH_ADD": (REMOTE_ATOMIC, LOCAL_WRITE),
    "CMP_SWAP": (REMOTE_ATOMIC, LOCAL_WRITE),
}


class FixedKeys:
    """Keys from a list."""

    def __init__(self, *keys: int) -> None:
        self._keys = iter(keys)

    def next_key(self, in_use: Callable[[int], bool]) -> int:
        for key in self._keys:
            if not in_use(key_index(key)):
                return key
        raise AssertionError("out of keys")


@pytest.fixture
def pd() -> ProtectionDomain:
    return ProtectionDomain(1)


@pytest.fixture
def table() -> ProtectionTable:
    return ProtectionTable(SeededKeys(b"table"))


def remote(
    table: ProtectionTable,
    mr: MemoryRegion,
    needed: AccessFlags = REMOTE_READ,
    *,
    offset: int = 0,
    length: int = 8,
    pd: int = 1,
    key: int | None = None,
) -> Verdict:
    key = mr.rkey if key is None else key
    return table.authorize(Access(key, mr.va + offset, length, needed, pd, 17, True))


def local(
    table: ProtectionTable,
    mr: MemoryRegion,
    needed: AccessFlags = NONE,
    *,
    pd: int = 1,
    key: int | None = None,
) -> Verdict:
    key = mr.lkey if key is None else key
    return table.authorize(Access(key, mr.va, 8, needed, pd, 17, False))


def registered(
    table: ProtectionTable,
    pd: ProtectionDomain,
    access: AccessFlags = ALL,
    *,
    length: int = 64,
    name: str = "rw",
    va: int | None = None,
) -> MemoryRegion:
    mr = MemoryRegion(pd, length, access, name=name, va=va)
    table.register(mr)
    return mr


# --- registration


def test_a_region_gets_two_keys_with_an_index_each(
    table: ProtectionTable, pd: ProtectionDomain
) -> None:
    regions = [registered(table, pd) for _ in range(500)]
    indices = {key_index(key) for mr in regions for key in (mr.lkey, mr.rkey)}
    assert len(indices) == 1000
    assert 0 not in indices
    assert pd.users == 500


def test_both_keys_lead_to_the_region(table: ProtectionTable, pd: ProtectionDomain) -> None:
    mr = registered(table, pd)
    assert remote(table, mr).ok
    assert remote(table, mr).mr is mr
    assert local(table, mr, LOCAL_WRITE).mr is mr
    rkey_entry = table.lookup(mr.rkey)
    assert rkey_entry is not None
    assert (rkey_entry.kind, rkey_entry.key) == (KeyKind.RKEY, mr.rkey)


def test_entries_list_what_is_live(table: ProtectionTable, pd: ProtectionDomain) -> None:
    first, second = registered(table, pd, name="a"), registered(table, pd, REMOTE_READ, name="b")
    assert [(entry.name, entry.kind, entry.key) for entry in table.entries()] == [
        ("a", KeyKind.LKEY, first.lkey),
        ("a", KeyKind.RKEY, first.rkey),
        ("b", KeyKind.LKEY, second.lkey),
        ("b", KeyKind.RKEY, second.rkey),
    ]
    table.deregister(first)
    assert {entry.name for entry in table.entries()} == {"b"}


@pytest.mark.parametrize("flag", [REMOTE_WRITE, REMOTE_ATOMIC])
def test_c38_a_refused_registration_leaves_nothing(
    table: ProtectionTable, pd: ProtectionDomain, flag: AccessFlags
) -> None:
    with pytest.raises(RegistrationError, match="requires IBV_ACCESS_LOCAL_WRITE"):
        registered(table, pd, flag)
    assert table.entries() == []
    assert pd.users == 0


def test_a_region_is_registered_once(table: ProtectionTable, pd: ProtectionDomain) -> None:
    mr = registered(table, pd)
    keys = mr.lkey, mr.rkey
    with pytest.raises(RegistrationError, match="was registered before"):
        table.register(mr)
    table.deregister(mr)
    with pytest.raises(RegistrationError, match="was registered before"):
        table.register(mr)
    assert (mr.lkey, mr.rkey) == keys
    assert pd.users == 0


def test_a_generator_that_fails_leaves_nothing(pd: ProtectionDomain) -> None:
    # The second key has the index of the first, so there is none left for the rkey.
    table = ProtectionTable(FixedKeys(0x00000501, 0x00000502))
    mr = MemoryRegion(pd, 64, ALL)
    with pytest.raises(AssertionError, match="out of keys"):
        table.register(mr)
    assert table.entries() == []
    assert (mr.lkey, mr.rkey, pd.users) == (0, 0, 0)


def test_a_full_table_refuses(
    table: ProtectionTable, pd: ProtectionDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpt, "_MAX_ENTRIES", 4)
    registered(table, pd)
    registered(table, pd)
    with pytest.raises(RegistrationError, match="the table is full: 4 keys"):
        registered(table, pd)
    assert len(table.entries()) == 4


def test_a_region_without_a_name_goes_by_its_lkey(pd: ProtectionDomain) -> None:
    table = ProtectionTable(FixedKeys(0x00000501, 0x00000602))
    mr = registered(table, pd, REMOTE_READ, name="")
    assert remote(table, mr, REMOTE_WRITE).describe().endswith("; MR 0x00000501")


# --- zero length


@pytest.mark.parametrize("remote", [True, False])
def test_c25_an_access_of_no_length_is_not_looked_at(table: ProtectionTable, remote: bool) -> None:
    verdict = table.authorize(Access(0xDEADBEEF, 0, 0, REMOTE_WRITE, 1, 17, remote))
    assert verdict.ok
    assert verdict.mr is None
    assert verdict.describe() == "granted"
    assert table.counters()["cache_misses"] == 0


# --- cases


@pytest.mark.parametrize("needed", [REMOTE_WRITE, REMOTE_READ])
def test_c22_address_plus_length_past_2_64(
    table: ProtectionTable, pd: ProtectionDomain, needed: AccessFlags
) -> None:
    for va in (0, 0x1000, TOP - 0x800):
        mr = registered(table, pd, length=0x500, va=va)
        wraps = Access(mr.rkey, TOP - 0x400, 0x400, needed, 1, 17, True)
        assert table.authorize(wraps).causes == (Cause.BOUNDS,)
    top = registered(table, pd, length=0x400, va=TOP - 0x400)
    assert table.authorize(Access(top.rkey, TOP - 0x400, 0x400, needed, 1, 17, True)).ok
    assert table.authorize(Access(top.rkey, TOP - 1, 1, needed, 1, 17, True)).ok
    past = table.authorize(Access(top.rkey, TOP - 1, 2, needed, 1, 17, True))
    assert past.causes == (Cause.BOUNDS,)


def test_c27_an_lkey_handed_out_as_rkey(table: ProtectionTable, pd: ProtectionDomain) -> None:
    mr = registered(table, pd)
    verdict = remote(table, mr, REMOTE_WRITE, key=mr.lkey)
    assert verdict.causes == (Cause.KEY,)
    assert verdict.describe() == f"key: {mr.lkey:#010x} is the lkey of MR rw"
    other_way = local(table, mr, key=mr.rkey)
    assert other_way.causes == (Cause.KEY,)
    assert other_way.describe() == f"key: {mr.rkey:#010x} is the rkey of MR rw"


def test_c29_a_stale_key_is_told_from_one_never_issued(
    table: ProtectionTable, pd: ProtectionDomain
) -> None:
    buffer = bytearray(64)
    mr = MemoryRegion(pd, buffer, ALL, name="rw")
    table.register(mr)
    assert remote(table, mr).ok
    table.deregister(mr)

    stale = remote(table, mr)
    assert stale.causes == (Cause.STATE,)
    assert stale.describe() == "state: MR rw was deregistered"
    assert stale.mr is None
    assert local(table, mr).causes == (Cause.STATE,)
    unknown = remote(table, mr, key=mr.rkey ^ 0xFFFFFF00)
    assert unknown.causes == (Cause.KEY,)
    assert unknown.describe().endswith("never issued")

    again = MemoryRegion(pd, buffer, ALL, name="rw")
    table.register(again)
    assert {again.lkey, again.rkey}.isdisjoint({mr.lkey, mr.rkey})
    assert remote(table, again).ok
    assert remote(table, mr).causes == (Cause.STATE,)


def test_a_withdrawn_key_names_its_other_faults_too(
    table: ProtectionTable, pd: ProtectionDomain
) -> None:
    mr = registered(table, pd, REMOTE_READ)
    table.deregister(mr)
    verdict = remote(table, mr, REMOTE_WRITE, length=65, pd=2, key=mr.rkey ^ 1)
    assert verdict.causes == (
        Cause.KEY,
        Cause.STATE,
        Cause.PD,
        Cause.PERMISSION,
        Cause.BOUNDS,
    )


@pytest.mark.parametrize(("size", "length"), [(64, 64), (2048, 2048)])
def test_c39_a_full_length_behind_an_offset(
    table: ProtectionTable, pd: ProtectionDomain, size: int, length: int
) -> None:
    mr = registered(table, pd, length=size)
    assert remote(table, mr, REMOTE_WRITE, length=length).ok
    assert remote(table, mr, REMOTE_WRITE, offset=1, length=length).causes == (Cause.BOUNDS,)
    assert remote(table, mr, REMOTE_WRITE, offset=1, length=length - 1).ok


@pytest.mark.parametrize("side", ["remote", "local"])
@pytest.mark.parametrize("operation", RIGHTS)
def test_c41_a_region_of_another_domain_is_out_of_reach(
    table: ProtectionTable,
    pd: ProtectionDomain,
    side: str,
    operation: str,
) -> None:
    mr = registered(table, pd)
    remote_right, local_right = RIGHTS[operation]

    def attempt(pd: int) -> Verdict:
        if side == "remote":
            return remote(table, mr, remote_right, pd=pd)
        return local(table, mr, local_right, pd=pd)

    assert attempt(pd=1).ok
    refused = attempt(pd=2)
    assert refused.causes == (Cause.PD,)
    assert refused.describe() == "pd: QP in PD 2, MR in PD 1; MR rw"


# --- withdrawal


def test_deregistration_leaves_the_buffer_to_its_owner(table: ProtectionTable) -> None:
    buffer = bytearray(b"abcdefgh")
    mr = MemoryRegion(ProtectionDomain(1), buffer, ALL)
    table.register(mr)
    view = mr.view(0, 8)
    table.deregister(mr)
    assert bytes(view) == b"abcdefgh"
    assert mr.read(0, 8) == b"abcdefgh"
    buffer[0:1] = b"Z"
    assert mr.read(0, 1) == b"Z"


def test_a_remembered_key_does_not_hold_on_to_the_memory(table: ProtectionTable) -> None:
    buffer = bytearray(64)
    mr = MemoryRegion(ProtectionDomain(1), buffer, ALL)
    table.register(mr)
    with pytest.raises(BufferError):
        buffer.append(0)
    assert remote(table, mr).ok
    table.deregister(mr)
    assert remote(table, mr).causes == (Cause.STATE,)
    del mr
    buffer.append(0)
    assert len(buffer) == 65


def test_deregistering_what_is_not_there(table: ProtectionTable, pd: ProtectionDomain) -> None:
    mr = registered(table, pd)
    table.deregister(mr)
    for wrong in (mr, MemoryRegion(pd, 64, ALL), registered(ProtectionTable(), pd)):
        with pytest.raises(ValueError, match="is not registered here"):
            table.deregister(wrong)
    assert pd.users == 1


def test_an_entry_held_across_deregistration_grants_nothing(
    table: ProtectionTable, pd: ProtectionDomain
) -> None:
    mr = registered(table, pd)
    held = table.lookup(mr.rkey)
    table.deregister(mr)
    access = Access(mr.rkey, mr.va, 8, REMOTE_READ, 1, 17, True)
    assert check(access, held).causes == (Cause.STATE,)


def test_the_memory_of_withdrawn_keys_is_bounded(pd: ProtectionDomain) -> None:
    table = ProtectionTable(SeededKeys(b"memory"), remembered=6)
    regions = [registered(table, pd) for _ in range(5)]
    for mr in regions:
        assert remote(table, mr).ok
        table.deregister(mr)
        assert remote(table, mr).causes == (Cause.STATE,)
    assert [remote(table, mr).causes for mr in regions] == [(Cause.KEY,)] * 2 + [(Cause.STATE,)] * 3
    assert [local(table, mr).causes for mr in regions] == [(Cause.KEY,)] * 2 + [(Cause.STATE,)] * 3
    assert table.counters()["remembered"] == 6


def test_an_index_comes_back_only_when_its_old_key_is_forgotten(pd: ProtectionDomain) -> None:
    keys = FixedKeys(0x501, 0x601, 0x502, 0x602, 0x701, 0x801, 0x503, 0x603)
    table = ProtectionTable(keys, remembered=2)
    first = registered(table, pd, REMOTE_READ)
    table.deregister(first)
    assert remote(table, first).causes == (Cause.STATE,)
    second = registered(table, pd, REMOTE_READ)
    assert (second.lkey, second.rkey) == (0x701, 0x801)
    table.deregister(second)
    third = registered(table, pd, REMOTE_READ)
    assert (third.lkey, third.rkey) == (0x503, 0x603)
    assert remote(table, third).ok
    assert remote(table, first, key=0x601).causes[0] is Cause.KEY


# --- cache


def test_misses_are_no_violation_and_are_counted(pd: ProtectionDomain) -> None:
    table = ProtectionTable(SeededKeys(b"cache"), cache_size=2)
    regions = [registered(table, pd) for _ in range(3)]
    for mr in regions * 2:
        assert remote(table, mr).ok
    assert remote(table, regions[2]).ok
    assert table.counters() == {
        "entries": 6,
        "remembered": 0,
        "cache_entries": 2,
        "cache_hits": 1,
        "cache_misses": 6,
        "cache_evictions": 4,
    }


def test_keys_that_lead_nowhere_push_nothing_out_of_the_cache(
    table: ProtectionTable, pd: ProtectionDomain
) -> None:
    table = ProtectionTable(SeededKeys(b"cache"), cache_size=1)
    mr = registered(table, pd)
    assert remote(table, mr).ok
    for guess in range(0x100, 0x10000, 0x100):
        assert not remote(table, mr, key=guess).ok
    assert key_index(mr.rkey) in table.cache
    assert table.counters()["cache_evictions"] == 0


def test_deregistration_empties_the_cache_before_it_returns(
    table: ProtectionTable, pd: ProtectionDomain
) -> None:
    mr = registered(table, pd)
    assert remote(table, mr).ok
    assert local(table, mr).ok
    indices = key_index(mr.lkey), key_index(mr.rkey)
    assert [index in table.cache for index in indices] == [True, True]
    table.deregister(mr)
    assert [index in table.cache for index in indices] == [False, False]


steps = st.lists(
    st.tuples(st.sampled_from(["register", "use", "deregister"]), st.integers(0, 5)), max_size=40
)


@given(steps=steps, cache_size=st.integers(1, 3), remembered=st.integers(0, 5))
def test_exactly_what_is_registered_is_granted(
    steps: list[tuple[str, int]], cache_size: int, remembered: int
) -> None:
    # Few indices, so that they are used again and again under new variants.
    keys = FixedKeys(*(index << 8 | variant for variant in range(256) for index in range(1, 32)))
    table = ProtectionTable(keys, cache_size=cache_size, remembered=remembered)
    pd = ProtectionDomain(1)
    live: list[MemoryRegion] = []
    gone: list[MemoryRegion] = []
    for step, number in steps:
        if step == "register" and len(live) < 6:
            live.append(registered(table, pd))
        elif step == "deregister" and number < len(live):
            gone.append(live.pop(number))
            table.deregister(gone[-1])
        elif number < len(live):
            assert remote(table, live[number]).mr is live[number]
        for mr in gone:
            assert not remote(table, mr).ok
            assert not local(table, mr).ok
    for mr in live:
        assert remote(table, mr).mr is mr
        assert local(table, mr).mr is mr
    assert pd.users == len(live)
    assert len(table.entries()) == table.counters()["entries"] == 2 * len(live)


def work(table: ProtectionTable, mr: MemoryRegion) -> int:
    """How many Python lines an access takes."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    access = Access(mr.rkey, mr.va, 8, REMOTE_READ, 1, 17, True)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert table.authorize(access).ok
    finally:
        sys.settrace(before)
    return lines


def test_an_access_takes_the_same_work_among_few_regions_and_many(pd: ProtectionDomain) -> None:
    table = ProtectionTable(SeededKeys(b"cost"), cache_size=4)
    mr = registered(table, pd)
    miss_among_few, hit_among_few = work(table, mr), work(table, mr)
    others = [registered(table, pd, length=8) for _ in range(3000)]
    for other in others[-4:]:
        assert remote(table, other).ok
    assert key_index(mr.rkey) not in table.cache
    assert work(table, mr) <= miss_among_few + 2  # and one eviction
    assert work(table, mr) == hit_among_few
