"""pcap files that others wrote, and files that are none."""

import io
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.utils import RawPcapReader, RawPcapWriter

from rocemu.capture import (
    CapturedPacket,
    CaptureError,
    CaptureReader,
    Direction,
    Interface,
    PcapngReader,
    PcapngWriter,
    PcapReader,
    build_frame,
    open_capture,
    read_capture,
)

SECOND, NANO = 1_800_000_000, 123_456_789
MICRO = 123_456_000


def scapys(path: Path, order: str, nano: bool, linktype: int, *frames: bytes) -> Path:
    with RawPcapWriter(str(path), linktype=linktype, endianness=order, nano=nano) as writer:
        writer.write_header(None)
        for number, frame in enumerate(frames):
            fraction = NANO if nano else MICRO // 1000
            writer.write_packet(frame, sec=SECOND + number, usec=fraction, wirelen=len(frame) + 9)
    return path


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("nano", [False, True], ids=["micro", "nano"])
def test_scapys_files_of_every_kind(order: str, nano: bool, goldens, tmp_path: Path) -> None:
    frames = [g.ip for g in goldens.values()]
    with open_capture(scapys(tmp_path / "a.pcap", order, nano, 101, *frames)) as reader:
        read = list(reader)
    assert (reader.packets, reader.damage) == (len(frames), None)
    assert [p.data for p in read] == frames
    for number, packet in enumerate(read):
        assert packet.timestamp_ns == (SECOND + number) * 10**9 + (NANO if nano else MICRO)
        assert packet.original_length == len(packet.data) + 9
        assert (packet.linktype, packet.direction, packet.comments) == (101, Direction.UNKNOWN, ())


@pytest.fixture
def ours(goldens, tmp_path: Path) -> Path:
    """A pcapng of the golden packets, for other tools to convert."""
    interface = Interface(name="rocemu0")
    with (tmp_path / "ours.pcapng").open("wb") as file:
        writer = PcapngWriter(file, [interface])
        for number, golden in enumerate(goldens.values()):
            frame = build_frame(golden.flow, 0, golden.payload)
            time = (SECOND + number) * 10**9 + NANO
            writer.write(CapturedPacket(time, frame, len(frame), interface))
    return tmp_path / "ours.pcapng"


def check_converted(path: Path, goldens, fraction: int) -> None:
    with open_capture(path) as reader:
        read = list(reader)
    assert isinstance(reader, PcapReader)
    assert [p.data[14:] for p in read] == [g.ip for g in goldens.values()]
    times = [(SECOND + number) * 10**9 + fraction for number in range(len(goldens))]
    assert [p.timestamp_ns for p in read] == times
    assert {p.linktype for p in read} == {1}


@pytest.mark.needs_tshark
@pytest.mark.parametrize(("kind", "fraction"), [("pcap", MICRO), ("nsecpcap", NANO)])
def test_editcaps_conversions(kind: str, fraction: int, ours, goldens, tmp_path: Path) -> None:
    subprocess.run(["editcap", "-F", kind, ours, tmp_path / "b.pcap"], check=True)
    check_converted(tmp_path / "b.pcap", goldens, fraction)


@pytest.mark.needs_root
@pytest.mark.parametrize(("kind", "fraction"), [("micro", MICRO), ("nano", NANO)])
def test_tcpdumps_conversions(kind: str, fraction: int, ours, goldens, tmp_path: Path) -> None:
    out = tmp_path / "b.pcap"
    command = ["tcpdump", f"--time-stamp-precision={kind}", "-Z", "root", "-r", ours, "-w", out]
    subprocess.run(command, check=True, capture_output=True)
    check_converted(out, goldens, fraction)


def test_a_file_cut_anywhere_gives_the_packets_before_and_says_so(goldens, tmp_path: Path) -> None:
    frames = [goldens["write"].ip, goldens["nak"].ip]
    data = scapys(tmp_path / "a.pcap", "<", True, 101, *frames).read_bytes()
    ends = [24, 24 + 16 + len(frames[0]), len(data)]
    for size in range(24, len(data) + 1):
        reader = read_capture(io.BytesIO(data[:size]))
        read = list(reader)
        assert [p.data for p in read] == frames[: sum(size >= end for end in ends[1:])]
        assert (reader.damage is None) == (size in ends), size
        if reader.damage:
            assert reader.damage.startswith(f"after packet {len(read)}: the file ends in a ")


def test_a_record_of_absurd_length_ends_the_reading(goldens, tmp_path: Path) -> None:
    data = scapys(tmp_path / "a.pcap", "<", True, 101, goldens["nak"].ip).read_bytes()
    reader = read_capture(io.BytesIO(data + struct.pack("<IIII", 0, 0, 262_145, 262_145)))
    assert len(list(reader)) == 1
    assert reader.damage is not None
    assert reader.damage.startswith("after packet 1: a record of 262145 bytes")


def test_frame_check_sequence_bits_are_no_part_of_the_link_type() -> None:
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 0x24000001)
    reader = read_capture(io.BytesIO(header))
    assert isinstance(reader, PcapReader)
    assert reader.interface.linktype == 1


NO_CAPTURE = {
    b"": "the file is empty",
    b"abc": "begins with 61 62 63",
    b"GET / HTTP/1.1": "begins with 47 45 54 20",
    b"\xd4\xc3\xb2\xa1\x02\0": "not a whole pcap file: the file ends in the file header",
    struct.pack("<IHHiIII", 0xA1B2C3D4, 3, 0, 0, 0, 0, 1): "pcap version 3.0",
}


@pytest.mark.parametrize("content", NO_CAPTURE, ids=NO_CAPTURE.values())
def test_what_is_no_capture_is_refused_with_a_sentence_and_its_path(content, tmp_path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=NO_CAPTURE[content]) as refused:
        open_capture(path)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize("reader", [PcapReader, PcapngReader])
def test_a_reader_refuses_a_file_of_another_format(reader: type[CaptureReader]) -> None:
    with pytest.raises(CaptureError, match="it begins with 50 4b 03 04"):
        reader(io.BytesIO(), b"PK\3\4")


@given(st.binary(max_size=80), st.sampled_from([b"\xd4\xc3\xb2\xa1\x02\0\x04\0", b"\n\r\r\n", b""]))
def test_any_bytes_are_read_or_refused(content: bytes, start: bytes) -> None:
    try:
        reader = read_capture(io.BytesIO(start + content))
    except CaptureError:
        return
    assert len(list(reader)) == reader.packets


def test_packets_come_from_a_pipe_before_it_is_closed(goldens, tmp_path: Path) -> None:
    data = scapys(tmp_path / "a.pcap", "<", True, 101, goldens["nak"].ip).read_bytes()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    seen = threading.Event()

    def feed() -> None:
        with fifo.open("wb") as file:
            file.write(data)
            file.flush()
            seen.wait(60)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        with open_capture(fifo) as reader:
            first = next(iter(reader))
            seen.set()
    finally:
        seen.set()
        feeder.join()
    assert first.data == goldens["nak"].ip


def test_standard_input_is_read(goldens, tmp_path: Path) -> None:
    path = scapys(tmp_path / "a.pcap", "<", True, 101, *[g.ip for g in goldens.values()])
    program = "from rocemu.capture import open_capture; print(len(list(open_capture('-'))))"
    with path.open("rb") as file:
        said = subprocess.run(
            [sys.executable, "-c", program], stdin=file, capture_output=True, text=True, check=True
        )
    assert said.stdout == f"{len(goldens)}\n"


PCAPS = Path(__file__).parents[2] / "pcaps"


def test_the_projects_captures_read_as_scapy_reads_them() -> None:
    """Those that are kept; what a run of the compose file left is not."""
    for path in sorted(PCAPS.rglob("*.pcap*")):
        if path.is_relative_to(PCAPS / "compose"):
            continue
        with RawPcapReader(str(path)) as theirs, open_capture(path) as reader:
            assert [p.data for p in reader] == [data for data, _ in theirs], path
        assert reader.damage is None, path
