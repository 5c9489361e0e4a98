"""The endpoint's own capture, judged by tshark; and that it never stops the daemon."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.utils import rdpcap

from rocemu.capture import (
    Direction,
    EndpointCapture,
    Interface,
    PcapngReader,
    PcapngWriter,
    create_file,
    decode_frame,
    open_capture,
)
from rocemu.wire.icrc import Flow, IcrcMatch, seal, verify

TIME = 1_800_000_000_123_456_789
COMMENT = "permission: remote_write not in remote_read; MR ro"


@pytest.fixture
def story(goldens, tmp_path: Path) -> Path:
    """The responder's view: a refused WRITE came, the NAK left; the same over IPv6; a bad ICRC."""
    path = tmp_path / "responder.pcapng"
    write, nak = goldens["write"], goldens["nak"]
    capture = EndpointCapture.create(path, name="rocemu0", description="responder on 10.0.0.2")
    capture.received(write.payload, write.flow, 0, TIME, COMMENT, tos=2, ttl=63)
    capture.sent(nak.payload, nak.flow, 0, TIME + 1)
    there, back = Flow("fd00::1", "fd00::2", 0xC123), Flow("fd00::2", "fd00::1", 0xC456)
    capture.received(seal(write.payload[:-4], there), there, 0, TIME + 2)
    capture.sent(seal(nak.payload[:-4], back), back, 0, TIME + 3)
    capture.received(write.payload[:-4] + b"\xde\xad\xbe\xef", write.flow, 0x1234, TIME + 4)
    capture.close()
    assert (capture.packets, capture.error) == (5, None)
    return path


@pytest.mark.needs_tshark
def test_tshark_sees_the_story(story: Path, tshark) -> None:
    assert tshark(story, "frame.time_epoch", "frame.interface_name", "frame.comment") == [
        ["1800000000.123456789", "rocemu0", COMMENT],
        *[[f"1800000000.12345679{n}", "rocemu0", ""] for n in range(4)],
    ]
    addresses = ["ip.src", "ip.dst", "ip.id", "ip.ttl", "ip.dsfield", "udp.srcport", "udp.dstport"]
    rows = tshark(story, "frame.packet_flags_direction", *addresses)
    assert rows[0][1:] == ["10.0.0.1", "10.0.0.2", "0x0000", "63", "0x02", "49443", "4791"]
    assert rows[1][1:] == ["10.0.0.2", "10.0.0.1", "0x0000", "64", "0x00", "50262", "4791"]
    assert [int(row[0], 0) for row in rows] == [1, 2, 1, 2, 1]
    assert rows[4][3] == "0x1234"


@pytest.mark.needs_tshark
def test_tshark_finds_checksums_right_and_nothing_malformed(story: Path, tshark) -> None:
    status = ["ip.checksum.status", "udp.checksum.status", "ip.flags.df"]
    rows = tshark(story, *status, "udp.checksum", "_ws.malformed", "_ws.expert.message")
    # status: 1 right, 3 not there (UDP over IPv4)
    assert [row[:2] for row in rows] == [["1", "3"], ["1", "3"], ["", "1"], ["", "1"], ["1", "3"]]
    assert [row[2] for row in rows] == ["1", "1", "", "", "1"]
    assert rows[0][3] == "0x0000"
    assert [row[4] for row in rows] == [""] * 5
    assert [row[5] for row in rows] == [COMMENT, "", "", "", ""]  # tshark shows comments there too


@pytest.mark.needs_tshark
def test_tshark_sees_the_remote_access_error(story: Path, tshark) -> None:
    fields = ["infiniband.bth.opcode", "infiniband.aeth.syndrome", "infiniband.invariant.crc"]
    rows = tshark(story, *fields, "_ws.col.Info")
    assert [row[1] for row in rows] == ["", "98", "", "98", ""]
    assert "[Remote Access Error]" in rows[1][3]
    assert rows[0][2] == "0x6cf39ef5"
    assert rows[4][2] == "0xdeadbeef"


def test_scapy_reads_it(story: Path) -> None:
    read = rdpcap(str(story))
    assert [packet[UDP].dport for packet in read] == [4791] * 5
    assert read[0][IP].id == 0
    assert read[0].comments == [COMMENT.encode()]
    assert read[0].sniffed_on == "rocemu0"


def test_an_icrc_in_the_file_is_right_exactly_when_it_was_on_the_wire(story: Path) -> None:
    with open_capture(story) as reader:
        found = [decode_frame(packet.linktype, packet.data) for packet in reader]
    matches = [verify(udp.payload, udp.flow, udp.ip_id)[0] for udp in found if udp]
    assert matches == [IcrcMatch.EXACT] * 4 + [IcrcMatch.BAD]


def test_a_live_reader_knows_the_interface_before_any_packet(tmp_path: Path) -> None:
    path = tmp_path / "live.pcapng"
    capture = EndpointCapture.create(path, name="rocemu0", description="responder")
    try:
        with open_capture(path) as reader:
            assert list(reader) == []
        assert isinstance(reader, PcapngReader)
        assert reader.interfaces == [Interface(name="rocemu0", description="responder")]
    finally:
        capture.close()


def test_what_is_flushed_can_be_read_while_the_capture_runs(goldens, tmp_path: Path) -> None:
    path = tmp_path / "live.pcapng"
    capture = EndpointCapture.create(path, name="rocemu0")
    try:
        for count in (1, 2):
            capture.sent(goldens["nak"].payload, goldens["nak"].flow, 0, TIME)
            capture.flush()
            with open_capture(path) as reader:
                assert [packet.direction for packet in reader] == [Direction.OUT] * count
            assert reader.damage is None
    finally:
        capture.close()


def test_a_file_that_exists_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "old.pcapng"
    path.write_bytes(b"x" * 10_000)
    EndpointCapture.create(path, name="rocemu0").close()
    with open_capture(path) as reader:
        assert list(reader) == []
    assert reader.damage is None


def test_the_file_is_for_everyone_to_read_and_never_to_run_or_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        EndpointCapture.create(tmp_path / "new.pcapng", name="rocemu0").close()
    finally:
        os.umask(before)
    assert (tmp_path / "new.pcapng").stat().st_mode & 0o777 == 0o644


def test_a_path_that_cannot_be_created_is_the_callers_to_report(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        EndpointCapture.create(tmp_path / "no" / "where.pcapng", name="rocemu0")


needs_dev_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")


@needs_dev_full
@pytest.mark.parametrize("packets", [1, 10_000], ids=["in the buffer", "beyond the buffer"])
@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_full_disk_is_told_once_and_then_forgotten(packets: int, end: str, goldens) -> None:
    told: list[OSError] = []
    interface = Interface(name="rocemu0")
    writer = PcapngWriter(create_file("/dev/full"), [interface])
    capture = EndpointCapture(writer, interface, on_error=told.append)
    nak = goldens["nak"]
    for _ in range(packets):
        capture.sent(nak.payload, nak.flow, 0, TIME)
    getattr(capture, end)()
    assert [error.errno for error in told] == [errno.ENOSPC]
    assert capture.error is told[0]
    written = capture.packets
    capture.received(nak.payload, nak.flow, 0, TIME)
    capture.flush()
    capture.close()
    assert (len(told), capture.packets) == (1, written)


@needs_dev_full
def test_a_full_disk_without_anyone_to_tell() -> None:
    capture = EndpointCapture.create("/dev/full", name="rocemu0")
    capture.close()
    assert capture.error is not None
    assert capture.error.errno == errno.ENOSPC


def test_after_close_nothing_is_written_and_nothing_fails(goldens, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    capture = EndpointCapture.create(path, name="rocemu0")
    capture.close()
    size = path.stat().st_size
    capture.sent(goldens["nak"].payload, goldens["nak"].flow, 0, TIME)
    capture.flush()
    capture.close()
    assert path.stat().st_size == size
    assert (capture.packets, capture.error) == (0, None)


STDOUT = """
import sys
from rocemu.capture import EndpointCapture
from rocemu.wire.icrc import Flow, seal
flow = Flow("10.0.0.1", "10.0.0.2", 50000)
sealed = seal(bytes.fromhex("1100ffff00000012000003e862000000"), flow)
capture = EndpointCapture.create("-", name="rocemu0", on_error=lambda error: print(
    "told", type(error).__name__, file=sys.stderr))
for _ in range(20_000):
    capture.sent(sealed, flow, 0, 1)
    capture.flush()
capture.close()
print("still here", file=sys.stderr)
"""


@pytest.mark.needs_tshark
def test_standard_output_can_be_piped_into_tshark() -> None:
    with subprocess.Popen([sys.executable, "-c", STDOUT], stdout=subprocess.PIPE) as writer:
        fields = ["-T", "fields", "-e", "frame.interface_name", "-e", "infiniband.aeth.syndrome"]
        said = subprocess.run(
            ["tshark", "-n", "-r", "-", *fields],
            stdin=writer.stdout,
            capture_output=True,
            text=True,
            check=True,
        )
    assert writer.returncode == 0
    assert said.stdout == "rocemu0\t98\n" * 20_000


def test_standard_output_stays_open_when_the_capture_closes() -> None:
    program = f"{STDOUT}\nprint('end', flush=True)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert said.stdout.endswith(b"end\n")


def test_a_reader_that_goes_away_does_not_end_the_program() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STDOUT], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        assert len(writer.stdout.read(100)) == 100
        writer.stdout.close()
        said = writer.stderr.read().decode()
    assert said == "told BrokenPipeError\nstill here\n"
    assert writer.returncode == 0
