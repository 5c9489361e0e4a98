"""Captures within gzip and zstd, whole and cut, from files and pipes."""

import gzip
import io
import subprocess
import sys
from pathlib import Path

import pytest

from rocemu.capture import CaptureError, open_capture, read_capture
from rocemu.capture.compression import decompressed

zstd = pytest.importorskip(
    "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
    reason="zstd is an extra: pip install rocemu[zstd]",
)
PCAP = (Path(__file__).parents[2] / "pcaps/soft-roce/ok_read.pcap").read_bytes()
WHOLE = [packet.data for packet in read_capture(io.BytesIO(PCAP))]
COMPRESS = {"gzip": gzip.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("name", COMPRESS)
def test_what_is_compressed_reads_as_what_is_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap.compressed"
    path.write_bytes(COMPRESS[name](PCAP))
    with open_capture(path) as reader:
        assert [packet.data for packet in reader] == WHOLE
    assert reader.damage is None


@pytest.mark.parametrize("name", COMPRESS)
def test_several_streams_behind_each_other_are_one(name: str) -> None:
    compress = COMPRESS[name]
    reader = read_capture(io.BytesIO(compress(PCAP[:100]) + compress(PCAP[100:])))
    assert [packet.data for packet in reader] == WHOLE


def test_a_gzip_cut_anywhere_gives_the_packets_before_and_says_so() -> None:
    data = gzip.compress(PCAP)
    refused, counts = set(), []
    for size in range(2, len(data)):
        try:
            reader = read_capture(io.BytesIO(data[:size]))
        except CaptureError as error:
            refused.add(str(error))
            continue
        read = [packet.data for packet in reader]
        assert read == WHOLE[: len(read)]
        assert reader.damage is not None
        assert reader.damage.startswith(f"after packet {len(read)}: ")
        counts.append(len(read))
    assert counts == sorted(counts)
    assert counts[-1] == len(WHOLE)
    assert all("the gzip stream ends before its end mark" in sentence for sentence in refused)


@pytest.mark.parametrize("name", COMPRESS)
def test_a_damaged_stream_is_a_sentence(name: str) -> None:
    data = COMPRESS[name](PCAP)
    for at in range(len(data)):
        broken = data[:at] + bytes((data[at] ^ 0x55,)) + data[at + 1 :]
        try:
            reader = read_capture(io.BytesIO(broken))
        except CaptureError:
            continue
        for packet in reader:
            assert len(packet.data) <= len(PCAP)


def test_zstd_that_nothing_can_read_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    data = zstd.compress(PCAP)
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)  # importing raises ImportError
    with pytest.raises(CaptureError, match=r"needs Python 3\.14 or rocemu\[zstd\]"):
        read_capture(io.BytesIO(data))


def test_what_is_not_compressed_stays_itself() -> None:
    file = io.BytesIO(PCAP)
    assert decompressed(file) is file
    assert file.read() == PCAP


def test_a_compressed_capture_comes_from_standard_input(tmp_path: Path) -> None:
    program = "from rocemu.capture import open_capture; print(len(list(open_capture('-'))))"
    said = subprocess.run(
        [sys.executable, "-c", program], input=gzip.compress(PCAP), capture_output=True, check=True
    )
    assert said.stdout == f"{len(WHOLE)}\n".encode()


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A hundred megabytes of packets, read by a process that may have far fewer."""
    path = tmp_path / "big.pcap.gz"
    record = PCAP[24:]
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(PCAP[:24])
        for _ in range(100_000_000 // len(record)):
            file.write(record)
    program = f"""
import re
from pathlib import Path
from rocemu.capture import open_capture
def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = most()
print(sum(1 for _ in open_capture({str(path)!r})), most() - before)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    count, grown = map(int, said.stdout.split())
    assert count == 100_000_000 // len(record) * len(WHOLE)
    assert grown < 8192  # kilobytes
