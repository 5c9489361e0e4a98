"""Endace's records: RoCE in Ethernet, native InfiniBand recognised and named."""

import io
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.capture import (
    CaptureError,
    ErfReader,
    ErfType,
    LinkType,
    Network,
    decode_frame,
    locate,
    open_capture,
    read_capture,
)

PCAP = Path(__file__).parents[2] / "pcaps/soft-roce/ok_read.pcap"
#: LRH (LNH 2: BTH follows), BTH of an RC SEND Only, ICRC and VCRC.
NATIVE = bytes.fromhex("00020001000800020400ffff0000001180000001000000000000")


def erf(kind: int, data: bytes, *, time_ns: int = 0, extensions: bytes = b"", wire: int = 0):
    """A record, filled up to 8 bytes as the format asks for."""
    if kind & 0x7F == ErfType.ETHERNET:
        data = b"\0\0" + data
    body = extensions + data + bytes(-(16 + len(extensions) + len(data)) % 8)
    header = struct.pack("<QBB", (time_ns << 32) // 10**9, kind, 4)
    return header + struct.pack(">HHH", 16 + len(body), 0, wire or len(data)) + body


def records() -> bytes:
    with open_capture(PCAP) as reader:
        return b"".join(
            erf(ErfType.ETHERNET, packet.data, time_ns=packet.timestamp_ns, wire=len(packet.data))
            for packet in reader
        )


def test_ethernet_records_are_the_packets_of_the_pcap() -> None:
    reader = read_capture(io.BytesIO(records()))
    assert isinstance(reader, ErfReader)
    with open_capture(PCAP) as pcap:
        for ours, theirs in zip(reader, pcap, strict=True):
            assert ours.data[18:] == theirs.data
            assert abs(ours.timestamp_ns - theirs.timestamp_ns) <= 1
            assert not ours.cut
            assert decode_frame(ours.linktype, ours.data) == decode_frame(1, theirs.data)
    assert reader.damage is None


@pytest.mark.needs_tshark
def test_tshark_reads_the_same_from_that_file(tmp_path: Path) -> None:
    path = tmp_path / "a.erf"
    path.write_bytes(records())
    fields = ["-e", "frame.len", "-e", "infiniband.bth.psn", "-e", "infiniband.invariant.crc"]
    rows = [
        subprocess.run(
            ["tshark", "-r", name, "-T", "fields", *fields],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for name in (path, PCAP)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 8


@pytest.mark.parametrize("extensions", [b"", b"\x84" + bytes(7) + b"\x05" + bytes(7)])
@pytest.mark.parametrize("kind", [ErfType.INFINIBAND, ErfType.INFINIBAND_LINK])
def test_native_infiniband_is_named(kind: int, extensions: bytes) -> None:
    flag = 0x80 if extensions else 0
    (packet,) = read_capture(io.BytesIO(erf(kind | flag, NATIVE, extensions=extensions)))
    found = locate(packet.linktype, packet.data)
    assert found.network is Network.INFINIBAND
    assert packet.data[found.network_at :] == NATIVE
    assert locate(LinkType.INFINIBAND, NATIVE).network is Network.INFINIBAND
    assert decode_frame(packet.linktype, packet.data) is None


@pytest.mark.needs_tshark
def test_tshark_calls_it_infiniband_too(tmp_path: Path) -> None:
    path = tmp_path / "native.erf"
    path.write_bytes(erf(ErfType.INFINIBAND, NATIVE) * 3)
    said = subprocess.run(
        ["tshark", "-r", path, "-T", "fields", "-e", "infiniband.lrh.slid", "-e", "erf.types.type"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == ["2\t21"] * 3


def test_a_record_cut_by_the_adapter_is_counted() -> None:
    reader = read_capture(io.BytesIO(erf(ErfType.ETHERNET, bytes(54), wire=1000)))
    assert [packet.cut for packet in reader] == [True]
    assert reader.cut == 1


def test_a_record_that_is_shorter_than_its_header_ends_the_reading() -> None:
    good = erf(ErfType.ETHERNET, bytes(54))
    reader = read_capture(io.BytesIO(good + bytes(10) + b"\0\x0f" + bytes(4)))
    assert len(list(reader)) == 1
    assert reader.damage == "after packet 1: a record of 15 bytes, its header alone is 16"


@pytest.mark.parametrize("flags", [0x40, 0x80])
def test_reserved_flags_are_no_erf(flags: int) -> None:
    data = bytearray(records())
    data[9] |= flags
    with pytest.raises(CaptureError, match="not a pcap, pcapng or ERF file"):
        read_capture(io.BytesIO(data))


@given(st.binary(max_size=64), st.sampled_from([2, 21, 25, 0x82, 0x95]))
def test_any_record_is_read_or_refused(data: bytes, kind: int) -> None:
    (packet,) = read_capture(io.BytesIO(erf(kind, data + b"x")))
    assert locate(packet.linktype, packet.data).network in Network
    for size in range(len(packet.data)):
        assert locate(packet.linktype, packet.data[:size]).network in Network
