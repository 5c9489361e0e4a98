"""What a responder tells in its REP: any bytes are read, and what was packed comes back."""

from hypothesis import given
from hypothesis import strategies as st

from rocemu.net.advert import RemoteRegion, pack_regions, parse_regions, without_room
from rocemu.verbs import AccessFlags

names = st.text(max_size=31).filter(lambda text: len(text.encode()) <= 255)
regions = st.builds(
    RemoteRegion,
    names,
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 15).map(AccessFlags),
)


def test_the_layout() -> None:
    region = RemoteRegion("rw", 0x1000, 0x2000, 0xABCD, AccessFlags.IBV_ACCESS_REMOTE_READ)
    assert pack_regions([region]) == bytes.fromhex(
        "524d5231 0001 0000 0000000000001000 0000000000002000 0000abcd 0004 02 7277"
    )


@given(st.lists(regions, max_size=20), st.none() | regions)
def test_what_is_packed_comes_back(
    listed: list[RemoteRegion], directory: RemoteRegion | None
) -> None:
    packed = pack_regions(listed, directory)
    assert parse_regions(packed) == (listed, directory)
    assert parse_regions(packed + bytes(20)) == (listed, directory), "private data is padded"


@given(st.lists(regions, max_size=20))
def test_what_stays_fits_a_rep(listed: list[RemoteRegion]) -> None:
    excess = without_room(listed)
    directory = RemoteRegion("(directory)", 0, 0, 0, AccessFlags(0)) if excess else None
    kept = listed[: len(listed) - excess]
    assert len(pack_regions(kept, directory)) <= 196
    if excess:
        assert len(pack_regions(listed[: len(kept) + 1], directory)) > 196, "no room is wasted"


@given(st.binary(max_size=300) | st.binary(max_size=300).map(b"RMR1".__add__))
def test_any_bytes_are_read(data: bytes) -> None:
    found, directory = parse_regions(data)
    if not data.startswith(b"RMR1"):
        assert (found, directory) == ([], None)


@given(st.lists(regions, min_size=1, max_size=5), st.data())
def test_a_list_that_is_cut_short_is_none(listed: list[RemoteRegion], data: st.DataObject) -> None:
    packed = pack_regions(listed)
    assert parse_regions(packed[: data.draw(st.integers(0, len(packed) - 1))]) == ([], None)
