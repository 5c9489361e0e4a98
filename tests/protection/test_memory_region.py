"""Regions: registration rules, buffers, addresses, and reading and writing memory."""

from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.protection import (
    MemoryRegion,
    PDInUseError,
    ProtectionDomain,
    ProtectionTable,
    RegistrationError,
)
from rocemu.verbs import AccessFlags

NONE = AccessFlags(0)
LOCAL_WRITE = AccessFlags.IBV_ACCESS_LOCAL_WRITE
REMOTE_WRITE = AccessFlags.IBV_ACCESS_REMOTE_WRITE
REMOTE_READ = AccessFlags.IBV_ACCESS_REMOTE_READ
REMOTE_ATOMIC = AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
ZERO_BASED = AccessFlags.IBV_ACCESS_ZERO_BASED
TOP = 1 << 64


@pytest.fixture
def pd() -> ProtectionDomain:
    return ProtectionDomain(1)


# --- flags


@pytest.mark.parametrize("bits", range(16))
def test_remote_write_and_atomic_need_local_write(pd: ProtectionDomain, bits: int) -> None:
    flags = AccessFlags(bits)
    if flags & (REMOTE_WRITE | REMOTE_ATOMIC) and not flags & LOCAL_WRITE:
        with pytest.raises(RegistrationError, match="requires IBV_ACCESS_LOCAL_WRITE"):
            MemoryRegion(pd, 64, flags)
    else:
        assert MemoryRegion(pd, 64, flags).access == bits


@pytest.mark.parametrize("flag", [REMOTE_WRITE, REMOTE_ATOMIC])
def test_the_refusal_names_the_flag(pd: ProtectionDomain, flag: AccessFlags) -> None:
    with pytest.raises(RegistrationError) as error:
        MemoryRegion(pd, 64, flag | REMOTE_READ)
    assert str(error.value) == f"{flag.name} requires IBV_ACCESS_LOCAL_WRITE"


@pytest.mark.parametrize(
    "flag",
    [
        AccessFlags.IBV_ACCESS_MW_BIND,
        AccessFlags.IBV_ACCESS_FLUSH_GLOBAL,
        AccessFlags.IBV_ACCESS_FLUSH_PERSISTENT,
        AccessFlags.IBV_ACCESS_RELAXED_ORDERING,
        AccessFlags(1 << 29),
    ],
)
def test_flags_that_change_nothing_here_are_kept(pd: ProtectionDomain, flag: AccessFlags) -> None:
    assert MemoryRegion(pd, 64, flag).access == flag


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        (AccessFlags.IBV_ACCESS_ON_DEMAND, "on_demand"),
        (AccessFlags.IBV_ACCESS_HUGETLB, "hugetlb"),
        (AccessFlags.IBV_ACCESS_ON_DEMAND | AccessFlags.IBV_ACCESS_HUGETLB, "on_demand,hugetlb"),
        (AccessFlags(1 << 10), "0x400"),
        (AccessFlags(1 << 30), "0x40000000"),
    ],
)
def test_flags_that_would_be_a_lie_are_refused(
    pd: ProtectionDomain, flag: AccessFlags, name: str
) -> None:
    with pytest.raises(RegistrationError, match=f"^access flag {name} is not supported$"):
        MemoryRegion(pd, 64, flag | LOCAL_WRITE)


# --- buffers


def test_a_length_gives_zeroed_memory(pd: ProtectionDomain) -> None:
    mr = MemoryRegion(pd, 100, LOCAL_WRITE)
    assert mr.length == 100
    assert mr.read(0, 100) == bytes(100)
    mr.write(98, b"ab")
    assert mr.read(97, 3) == b"\0ab"


def test_a_buffer_is_used_in_place(pd: ProtectionDomain) -> None:
    buffer = bytearray(b"abcdef")
    mr = MemoryRegion(pd, buffer, LOCAL_WRITE)
    mr.write(2, b"XY")
    assert buffer == b"abXYef"
    buffer[0:1] = b"Z"
    assert mr.read(0, 3) == b"ZbX"


def test_a_view_of_wider_items_is_taken_as_bytes(pd: ProtectionDomain) -> None:
    buffer = bytearray(16)
    mr = MemoryRegion(pd, memoryview(buffer).cast("I"), LOCAL_WRITE)
    assert mr.length == 16
    mr.write(15, b"\xff")
    assert buffer[15] == 0xFF


def test_part_of_a_buffer(pd: ProtectionDomain) -> None:
    buffer = bytearray(16)
    mr = MemoryRegion(pd, memoryview(buffer)[4:8], LOCAL_WRITE)
    mr.write(0, b"abcd")
    assert buffer == bytes(4) + b"abcd" + bytes(8)


def test_a_mapped_file(pd: ProtectionDomain, tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"0123456789")
    with path.open("r+b") as file, mmap(file.fileno(), 0) as mapping:
        mr = MemoryRegion(pd, mapping, LOCAL_WRITE)
        mr.write(3, b"abc")
        mr.memory.release()
        mapping.flush()
    assert path.read_bytes() == b"012abc6789"


@pytest.fixture
def read_only(tmp_path: Path) -> mmap:
    path = tmp_path / "content"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        mapping = mmap(file.fileno(), 0, access=ACCESS_READ)
    return mapping


def test_a_read_only_buffer_serves_readers_alone(pd: ProtectionDomain, read_only: mmap) -> None:
    assert MemoryRegion(pd, read_only, REMOTE_READ).read(1, 2) == b"12"
    with pytest.raises(RegistrationError, match="IBV_ACCESS_LOCAL_WRITE: the buffer is read-only"):
        MemoryRegion(pd, read_only, LOCAL_WRITE)


def test_a_buffer_with_gaps_is_refused(pd: ProtectionDomain) -> None:
    with pytest.raises(RegistrationError, match="not contiguous"):
        MemoryRegion(pd, memoryview(bytearray(8))[::2], LOCAL_WRITE)


def test_a_negative_length_is_refused(pd: ProtectionDomain) -> None:
    with pytest.raises(RegistrationError, match="length -1 is negative"):
        MemoryRegion(pd, -1, LOCAL_WRITE)


@pytest.mark.parametrize("empty", [0, bytearray(), memoryview(b""), memoryview(bytearray())])
def test_an_empty_region_is_legal(pd: ProtectionDomain, empty: bytearray | memoryview) -> None:
    mr = MemoryRegion(pd, empty, LOCAL_WRITE)
    ProtectionTable().register(mr)
    assert mr.length == 0
    assert mr.read(0, 0) == b""


# --- addresses


def test_the_address_is_the_one_given(pd: ProtectionDomain) -> None:
    assert MemoryRegion(pd, 64, NONE, va=0x1234).va == 0x1234
    assert MemoryRegion(pd, 64, NONE, va=0).va == 0


def test_chosen_addresses_are_page_aligned_apart_and_repeatable() -> None:
    def regions() -> list[MemoryRegion]:
        domains = [ProtectionDomain(handle) for handle in (1, 2)]
        sizes = (0, 1, 4095, 4096, 4097, 1 << 20)
        return [MemoryRegion(pd, size, NONE) for size in sizes for pd in domains]

    placed = sorted(regions(), key=lambda mr: mr.va)
    assert all(mr.va % 4096 == 0 and mr.va > 0 for mr in placed)
    for below, above in pairwise(placed):
        assert below.va + below.length + 4096 <= above.va
    assert [mr.va for mr in regions()] == [mr.va for mr in regions()]


def test_zero_based_regions_start_at_zero(pd: ProtectionDomain) -> None:
    assert MemoryRegion(pd, 64, ZERO_BASED).va == 0
    assert MemoryRegion(pd, 64, ZERO_BASED, va=0).va == 0
    with pytest.raises(RegistrationError, match="IBV_ACCESS_ZERO_BASED: va is 0, not 0x1000"):
        MemoryRegion(pd, 64, ZERO_BASED, va=0x1000)


def test_a_region_may_end_at_2_64_and_not_beyond(pd: ProtectionDomain) -> None:
    assert MemoryRegion(pd, 64, NONE, va=TOP - 64).va == TOP - 64
    for va in (TOP - 63, TOP, -1):
        with pytest.raises(RegistrationError, match="is not inside 64 bits"):
            MemoryRegion(pd, 64, NONE, va=va)


# --- memory


@given(offset=st.integers(-20, 40), n=st.integers(-20, 40))
def test_nothing_outside_is_read_or_written(offset: int, n: int) -> None:
    buffer = bytearray(range(16))
    mr = MemoryRegion(ProtectionDomain(1), buffer, LOCAL_WRITE)
    if min(offset, n) >= 0 and offset + n <= 16:
        assert mr.read(offset, n) == bytes(range(16))[offset : offset + n]
        assert bytes(mr.view(offset, n)) == buffer[offset : offset + n]
    else:
        with pytest.raises(IndexError):
            mr.read(offset, n)
        with pytest.raises(IndexError):
            mr.view(offset, n)
        if n >= 0:
            with pytest.raises(IndexError):
                mr.write(offset, bytes(n))
            assert buffer == bytearray(range(16))


def test_read_copies_and_view_does_not(pd: ProtectionDomain) -> None:
    mr = MemoryRegion(pd, 8, LOCAL_WRITE)
    copy, view = mr.read(0, 4), mr.view(0, 4)
    mr.write(0, b"abcd")
    assert copy == bytes(4)
    assert bytes(view) == b"abcd"
    view[1:2] = b"Z"
    assert mr.read(0, 4) == b"aZcd"


def test_atomics_use_the_order_of_the_host(pd: ProtectionDomain) -> None:
    mr = MemoryRegion(pd, bytearray(b"\0" * 8 + bytes(range(1, 9))), LOCAL_WRITE)
    assert mr.load64(8) == 0x0807060504030201
    mr.store64(0, 0x1122334455667788)
    assert mr.read(0, 8) == bytes.fromhex("8877665544332211")


def test_atomics_wrap_at_2_64(pd: ProtectionDomain) -> None:
    mr = MemoryRegion(pd, 8, LOCAL_WRITE)
    mr.store64(0, TOP - 1)
    assert mr.load64(0) == TOP - 1
    mr.store64(0, mr.load64(0) + 2)
    assert mr.load64(0) == 1


@pytest.mark.parametrize("offset", [-8, -1, 9, 16])
def test_atomics_stay_inside(pd: ProtectionDomain, offset: int) -> None:
    mr = MemoryRegion(pd, 16, LOCAL_WRITE)
    with pytest.raises(IndexError):
        mr.load64(offset)
    with pytest.raises(IndexError):
        mr.store64(offset, 1)
    assert mr.read(0, 16) == bytes(16)


# --- domains


def test_a_domain_outlives_what_is_in_it(pd: ProtectionDomain) -> None:
    table = ProtectionTable()
    regions = [MemoryRegion(pd, 64, NONE) for _ in range(2)]
    for mr in regions:
        table.register(mr)
    assert pd.users == 2
    table.deregister(regions[0])
    with pytest.raises(PDInUseError, match="PD 1 is in use by 1"):
        pd.dealloc()
    assert not pd.deallocated
    table.deregister(regions[1])
    pd.dealloc()
    with pytest.raises(RegistrationError, match="PD 1 was deallocated"):
        table.register(MemoryRegion(pd, 64, NONE))
    assert table.entries() == []


def test_reprs_say_what_matters_and_not_the_memory(pd: ProtectionDomain) -> None:
    mr = MemoryRegion(pd, bytearray(b"secret"), REMOTE_READ, va=0x1000, name="ro")
    assert repr(mr) == (
        "MemoryRegion('ro', 0x1000+6, remote_read, lkey=0x00000000, rkey=0x00000000, pd=1)"
    )
    assert repr(MemoryRegion(pd, 6, NONE, va=0)).startswith("MemoryRegion(0x0+6, none, ")
    assert repr(pd) == "ProtectionDomain(1, users=0)"
