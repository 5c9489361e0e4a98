"""pcapng written (tshark, capinfos, Scapy read it) and read (others' files, and broken ones)."""

import io
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.utils import RawPcapNgReader

from rocemu.capture import (
    CapturedPacket,
    CaptureError,
    Direction,
    Interface,
    LinkType,
    PcapngReader,
    PcapngWriter,
    build_frame,
    open_capture,
    read_capture,
)

TIME = 1_800_000_000_123_456_789
WIRE = Interface(name="rocemu0", description="responder 10.0.0.2")
OTHER = Interface(LinkType.RAW, "raw", snaplen=40, os="elsewhere")


class Kept(io.BytesIO):
    """A file whose bytes can be had after it was closed."""

    def close(self) -> None:
        pass


def written(*packets: CapturedPacket, **options: object) -> bytes:
    file = Kept()
    writer = PcapngWriter(file, **options)  # type: ignore[arg-type]
    for packet in packets:
        writer.write(packet)
    writer.close()
    return file.getvalue()


def reader_of(data: bytes) -> PcapngReader:
    reader = read_capture(io.BytesIO(data))
    assert isinstance(reader, PcapngReader)
    return reader


@pytest.fixture
def packets(goldens) -> list[CapturedPacket]:
    """The WRITE and the NAK on one interface, the NAK's IP packet alone, cut, on another."""
    write, nak = (build_frame(g.flow, 0, g.payload) for g in (goldens["write"], goldens["nak"]))
    return [
        CapturedPacket(TIME, write, len(write), WIRE, ("permission: refused",), Direction.IN),
        CapturedPacket(TIME + 1, nak, len(nak), WIRE, (), Direction.OUT),
        CapturedPacket(TIME + 2, nak[14:54], 48, OTHER, ("first", "zweiter: ä"), Direction.UNKNOWN),
    ]


# written, others read


@pytest.mark.needs_tshark
def test_tshark_sees_all_that_was_written(packets, tmp_path: Path, tshark) -> None:
    path = tmp_path / "a.pcapng"
    path.write_bytes(written(*packets))
    names = ["frame.time_epoch", "frame.interface_name", "frame.interface_description"]
    assert tshark(path, *names, "frame.comment", "frame.cap_len", "frame.len") == [
        ["1800000000.123456789", "rocemu0", WIRE.description, "permission: refused", "82", "82"],
        ["1800000000.123456790", "rocemu0", WIRE.description, "", "62", "62"],
        ["1800000000.123456791", "raw", "", "first,zweiter: ä", "40", "48"],
    ]
    directions = [row[0] for row in tshark(path, "frame.packet_flags_direction")]
    assert [int(value, 0) if value else None for value in directions] == [1, 2, None]


@pytest.mark.needs_tshark
def test_capinfos_sees_interfaces_and_the_captures_comment(packets, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    path.write_bytes(
        written(*packets, interfaces=[OTHER, WIRE], comment="the story", application="rocemu 1")
    )
    said = subprocess.run(["capinfos", path], capture_output=True, text=True, check=True).stdout
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "Capture comment: the story" in lines
    assert "Capture application: rocemu 1" in lines
    assert "Number of interfaces in file: 2" in lines
    assert "File timestamp precision: nanoseconds (9)" in lines
    first, second = lines.index("Interface #0 info:"), lines.index("Interface #1 info:")
    assert {"Name = raw", "Operating system = elsewhere", "Capture length = 40"} <= set(
        lines[first:second]
    )
    assert {"Name = rocemu0", f"Description = {WIRE.description}", "Number of packets = 2"} <= set(
        lines[second:]
    )


@pytest.mark.needs_tshark
def test_a_capture_without_packets_is_one(tmp_path: Path, tshark) -> None:
    path = tmp_path / "a.pcapng"
    path.write_bytes(written(interfaces=[WIRE]))
    assert tshark(path, "frame.number") == []
    assert reader_of(path.read_bytes()).damage is None


def test_scapy_reads_what_was_written(packets, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    path.write_bytes(written(*packets))
    with RawPcapNgReader(str(path)) as theirs:
        read = list(theirs)
    assert [data for data, _ in read] == [packet.data for packet in packets]
    assert [meta.linktype for _, meta in read] == [1, 1, 101]
    assert [meta.wirelen for _, meta in read] == [82, 62, 48]
    for packet, (_, meta) in zip(packets, read, strict=True):
        assert meta.tsresol == 1_000_000_000
        assert (meta.tshigh << 32 | meta.tslow) == packet.timestamp_ns
        assert meta.direction == (packet.direction or None)


def test_data_is_cut_to_the_snap_length() -> None:
    (read,) = reader_of(written(CapturedPacket(TIME, bytes(range(100)), 100, OTHER)))
    assert (read.data, read.original_length, read.cut) == (bytes(range(40)), 100, True)


def test_a_comment_longer_than_an_option_is_cut_between_characters() -> None:
    (read,) = reader_of(written(CapturedPacket(TIME, b"", 0, WIRE, ("ä" * 40_000,))))
    assert read.comments == ("ä" * 32_767,)


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_INTERFACES = st.builds(
    Interface, st.integers(0, 0xFFFF), _TEXT, _TEXT, st.sampled_from([0, 64, 262_144]), _TEXT
)
_PACKETS = st.builds(
    lambda data, more, **rest: CapturedPacket(data=data, original_length=len(data) + more, **rest),
    st.binary(max_size=64),
    st.integers(0, 1000),
    timestamp_ns=st.integers(0, (1 << 64) - 1),
    interface=_INTERFACES,
    comments=st.lists(_TEXT, max_size=3).map(tuple),
    direction=st.sampled_from(Direction),
)


@given(st.lists(_PACKETS, max_size=5))
def test_what_was_written_is_read_again(packets: list[CapturedPacket]) -> None:
    reader = reader_of(written(*packets))
    assert list(reader) == packets
    assert (reader.damage, reader.bad_options, reader.skipped) == (None, 0, 0)
    assert reader.packets == len(packets)


# others' files, read


class Section:
    """Blocks of either byte order, by hand from the draft."""

    def __init__(self, order: str = "<") -> None:
        self.order = order
        self.data = b""
        self.block(0x0A0D0D0A, self.pack("IHHq", 0x1A2B3C4D, 1, 0, -1))

    def pack(self, fields: str, *values: int) -> bytes:
        return struct.pack(self.order + fields, *values)

    def option(self, code: int, value: bytes) -> bytes:
        return self.pack("HH", code, len(value)) + value + bytes(-len(value) % 4)

    def block(self, kind: int, body: bytes) -> "Section":
        size = self.pack("I", len(body) + 12)
        self.data += self.pack("I", kind) + size + body + size
        return self

    def interface(self, linktype: int = 101, snaplen: int = 0, options: bytes = b"") -> "Section":
        return self.block(1, self.pack("HHI", linktype, 0, snaplen) + options)

    def enhanced(self, number: int, time: int, data: bytes, options: bytes = b"") -> "Section":
        head = self.pack("IIIII", number, time >> 32, time & 0xFFFFFFFF, len(data), len(data))
        return self.block(6, head + data + bytes(-len(data) % 4) + options)


def several(order: str, golden) -> bytes:
    """Two sections: resolutions and offset, SPB, old packet block, blocks to skip."""
    ip = golden.ip
    first = Section(order)
    first.interface(options=first.option(2, b"micro\0") + bytes(4))
    first.block(5, first.pack("III", 0, 0, 0))  # interface statistics
    first.interface(options=first.option(9, b"\x94") + first.option(14, first.pack("q", 100)))
    first.block(4, bytes(4))  # name resolution
    comment = first.option(1, b"one") + first.option(1, b"two") + first.option(0x8001, b"x")
    first.enhanced(0, 1_800_000_000_000_001, ip, first.option(2, first.pack("I", 0x65)) + comment)
    first.enhanced(1, 3 << 20 | 1 << 19, ip)
    first.block(3, first.pack("I", len(ip)) + ip)
    fields = first.pack("HHIIII", 1, 0xFFFF, 0, 1 << 20, len(ip), len(ip))
    first.block(2, fields + ip + first.option(2, first.pack("I", 2)) + bytes(4))
    second = Section(order).interface(snaplen=44, options=first.option(9, b"\x03"))
    second.block(3, second.pack("I", len(ip)) + ip[:44])
    second.enhanced(0, 1_800_000_000_500, ip)
    return first.data + second.data


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_sections_interfaces_and_block_types_of_both_byte_orders(order: str, goldens) -> None:
    nak = goldens["nak"]
    reader = reader_of(several(order, nak))
    read = list(reader)
    assert reader.damage is None
    assert (reader.skipped, reader.bad_options) == (2, 0)
    assert [p.timestamp_ns for p in read] == [
        1_800_000_000_000_001_000,
        103_500_000_000,
        0,
        101_000_000_000,
        0,
        1_800_000_000_500_000_000,
    ]
    assert [p.data for p in read] == [nak.ip] * 4 + [nak.ip[:44], nak.ip]
    assert [p.cut for p in read] == [False] * 4 + [True, False]
    assert [p.direction for p in read] == [1, 0, 0, 2, 0, 0]
    assert read[0].comments == ("one", "two")
    assert (read[0].interface.name, read[0].linktype) == ("micro", 101)
    assert reader.interfaces == [Interface(101, snaplen=44)]


@pytest.mark.needs_tshark
@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_tshark_reads_the_same_from_that_file(order: str, goldens, tmp_path: Path, tshark) -> None:
    path = tmp_path / "a.pcapng"
    path.write_bytes(several(order, goldens["nak"]))
    rows = tshark(path, "frame.time_epoch", "frame.cap_len", "frame.len", "frame.comment")
    ours = [
        # tshark shows no time for a packet that has none
        [
            f"{p.timestamp_ns // 10**9}.{p.timestamp_ns % 10**9:09}" if p.timestamp_ns else "",
            str(len(p.data)),
            str(p.original_length),
            ",".join(p.comments),
        ]
        for p in reader_of(path.read_bytes())
    ]
    assert rows == ours


@pytest.mark.needs_tshark
def test_editcaps_pcapng_is_read_and_editcap_reads_ours(packets, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a.pcapng", tmp_path / "b.pcapng"
    ours.write_bytes(written(*packets))
    subprocess.run(["editcap", "-F", "pcapng", ours, theirs], check=True)
    with open_capture(theirs) as reader:
        assert list(reader) == packets


# broken files


def test_a_file_cut_anywhere_gives_the_packets_before_and_says_so(packets) -> None:
    data = written(*packets)
    whole = list(reader_of(data))
    ends, at = [], 0  # where blocks end
    while at < len(data):
        at += int.from_bytes(data[at + 4 : at + 8], "little")
        ends.append(at)
    for size in range(28, len(data)):
        reader = reader_of(data[:size])
        read = list(reader)
        assert read == whole[: len(read)]
        assert reader.packets == len(read)
        assert (reader.damage is None) == (size in ends), size
        if reader.damage:
            assert reader.damage.startswith(f"after packet {len(read)}: the file ends in a block")
    for size in range(28):
        with pytest.raises(CaptureError):
            read_capture(io.BytesIO(data[:size]))


GOOD = Section().interface().enhanced(0, 0, b"data").data
_S = Section()
DAMAGE = {
    "unknown interface": (
        Section().enhanced(1, 0, b"").data[28:],
        "a packet from interface 1, and 1 are declared",
    ),
    "data longer than its block": (
        Section().block(6, _S.pack("IIIII", 0, 0, 0, 5, 5) + b"data").data[28:],
        "a packet of 5 bytes in a block with room for 4",
    ),
    "simple data longer than its block": (
        Section().block(3, _S.pack("I", 8) + b"data").data[28:],
        "a packet of 8 bytes in a block with room for 4",
    ),
    "no room for the fields": (
        Section().block(6, bytes(16)).data[28:],
        "a packet of 16 bytes, its fields alone are 20",
    ),
    "no room for the interface": (
        Section().block(1, bytes(4)).data[28:],
        "an interface of 4 bytes, its fields alone are 8",
    ),
    "length under 12": (_S.pack("II", 6, 8), "a block length of 8"),
    "length not aligned": (_S.pack("II", 6, 33), "a block length of 33"),
    "absurd length": (_S.pack("II", 6, 0xFFFFFFF0), "a block length of 4294967280"),
    "lengths differ": (_S.pack("III", 6, 12, 16), "a block of 12 bytes that says 16 at its end"),
    "section of version 2": (
        Section().data[:12] + b"\2\0" + Section().data[14:],
        "pcapng version 2.0, only 1.x is read",
    ),
    "section of no byte order": (
        Section().data[:8] + b"abcd",
        "a section header with byte-order magic 61626364",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_where_the_file_stops_making_sense_reading_ends_with_a_sentence(case: str) -> None:
    garbage, sentence = DAMAGE[case]
    reader = reader_of(GOOD + garbage + GOOD)
    assert [packet.data for packet in reader] == [b"data"]
    assert reader.damage == f"after packet 1: {sentence}"


def test_a_million_interfaces_are_refused() -> None:
    reader = reader_of(Section().data + Section().interface().data[28:] * 65_537)
    assert list(reader) == []
    assert reader.damage == "after packet 0: more than 65536 interfaces"


def test_options_that_do_not_fit_are_counted_and_the_packet_kept() -> None:
    section = Section()
    section.interface(options=section.option(9, b"\x09\x09") + section.option(14, b"x"))
    section.enhanced(0, 5, b"data", section.option(1, b"kept") + section.pack("HH", 1, 400))
    section.enhanced(0, 5, b"data", section.option(2, b"\1\0"))
    section.enhanced(0, 5, b"data", section.option(2, section.pack("I", 3)))
    reader = reader_of(section.data)
    assert [(p.timestamp_ns, p.comments, p.direction) for p in reader] == [
        (5000, ("kept",), 0),
        (5000, (), 0),
        (5000, (), 0),
    ]
    assert (reader.damage, reader.bad_options) == (None, 4)


@given(st.data())
def test_no_damage_raises_anything_but_capture_error(data: st.DataObject) -> None:
    content = bytearray(
        written(
            CapturedPacket(TIME, b"payload", 7, WIRE, ("comment",), Direction.IN),
            CapturedPacket(TIME, b"payload", 7, OTHER),
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        reader = read_capture(io.BytesIO(content))
    except CaptureError:
        return
    assert len(list(reader)) == reader.packets <= 2


@pytest.mark.parametrize(
    ("options", "units"),
    [((9, b"\x00"), 1 << 63), ((14, struct.pack("<q", -100)), 5)],
    ids=["far future", "before 1970"],
)
def test_a_time_that_no_file_can_say_is_none(options: tuple[int, bytes], units: int) -> None:
    section = Section()
    section.interface(options=section.option(*options)).enhanced(0, units, b"data")
    (packet,) = reader_of(section.data)
    assert packet.timestamp_ns == 0
    assert reader_of(written(packet)).damage is None
