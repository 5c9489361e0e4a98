"""Batches give what the readers give, packet by packet, of good files and of bad ones."""

import gzip
import io
import random
import struct
from pathlib import Path

import pytest

from rocemu.capture import (
    CapturedPacket,
    CaptureError,
    Direction,
    Interface,
    PcapngReader,
    PcapngWriter,
    read_capture,
)
from rocemu.capture.batches import SLACK, Batch, read_batches

PCAPS = Path(__file__).parents[2] / "pcaps"
FILES = sorted(path for path in PCAPS.rglob("*.pcap*") if path.is_file())
Packets = list[tuple[bytes, int, int, int]]


def one_by_one(data: bytes) -> tuple[Packets, str | None, int]:
    with read_capture(io.BytesIO(data)) as reader:
        packets = [
            (packet.data, packet.original_length, packet.timestamp_ns, packet.linktype)
            for packet in reader
        ]
        return packets, reader.damage, reader.cut


def unpack(batch: Batch) -> Packets:
    assert len(batch.data) >= (batch.starts + batch.sizes).max() + SLACK
    return [
        (bytes(batch.data[start : start + size]), original, time, link)
        for start, size, original, time, link in zip(
            *(
                column.tolist()
                for column in (
                    batch.starts,
                    batch.sizes,
                    batch.originals,
                    batch.times,
                    batch.linktypes,
                )
            ),
            strict=True,
        )
    ]


def in_batches(file: io.BufferedIOBase) -> tuple[Packets, str | None, int]:
    with read_capture(file) as reader:
        packets = [packet for batch in read_batches(reader) for packet in unpack(batch)]
        assert reader.packets == len(packets)
        return packets, reader.damage, reader.cut


def same(data: bytes) -> int:
    expected = one_by_one(data)
    assert in_batches(io.BytesIO(data)) == expected
    return len(expected[0])


class Trickle(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, data: bytes, rng: random.Random) -> None:
        self._file, self._rng = io.BytesIO(data), rng

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        data = self._file.read(self._rng.randrange(1, min(len(buffer), 5000) + 1))
        buffer[: len(data)] = data
        return len(data)


def pcapng(count: int, *, seed: int = 0) -> bytes:
    """Interfaces of several kinds of time, comments, snap lengths, sections."""
    rng = random.Random(seed)
    file = io.BytesIO()
    for _ in range(2):
        interfaces = [Interface(), Interface(linktype=101, name="raw", snaplen=60)]
        writer = PcapngWriter(file, interfaces)
        for _ in range(count // 2):
            data = rng.randbytes(rng.randrange(1, 200))
            comments = ("why",) if rng.random() < 0.1 else ()
            writer.write(
                CapturedPacket(
                    rng.getrandbits(60),
                    data,
                    len(data),
                    rng.choice(interfaces),
                    comments,
                    rng.choice(list(Direction)),
                )
            )
    return file.getvalue()


def pcap(count: int, order: str = "<", magic: int = 0xA1B2C3D4) -> bytes:
    rng = random.Random(count)
    parts = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 1)]
    for _ in range(count):
        data = rng.randbytes(rng.randrange(300))
        head = rng.getrandbits(32), rng.randrange(10**6), len(data), len(data) + rng.randrange(2)
        parts += [struct.pack(order + "IIII", *head), data]
    return b"".join(parts)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_captures_that_are_kept(file: Path):
    assert same(file.read_bytes()) > 0


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("magic", [0xA1B2C3D4, 0xA1B23C4D])
def test_many_packets_of_pcap(order: str, magic: int):
    assert same(pcap(20_000, order, magic)) == 20_000


def test_many_packets_of_pcapng():
    assert same(pcapng(20_000)) == 20_000


def test_gzip():
    assert same(gzip.compress(pcapng(5000))) == 5000


def test_batches_are_large():
    with read_capture(io.BytesIO(pcap(50_000))) as reader:
        assert [len(batch) for batch in read_batches(reader)][1] > 20_000


@pytest.mark.parametrize("data", [pcap(3000), pcapng(3000)], ids=["pcap", "pcapng"])
def test_a_pipe(data: bytes):
    pipe = io.BufferedReader(Trickle(data, random.Random(1)))
    assert in_batches(pipe) == one_by_one(data)


@pytest.mark.parametrize("resolution", [0, 3, 6, 9, 12, 0x80 | 10, 0x80 | 30, 0x80 | 127])
def test_times_of_every_resolution(resolution: int):
    """Written by hand: interfaces with a resolution and an offset, and timestamps of any size."""
    rng = random.Random(resolution)
    option = struct.pack("<HHB3xHHqHH", 9, 1, resolution, 14, 8, rng.randrange(-1000, 1000), 0, 0)
    body = struct.pack("<HHI", 1, 0, 0) + option
    interface = struct.pack("<II", 1, len(body) + 12) + body + struct.pack("<I", len(body) + 12)
    section = pcapng(0)[:28]
    blocks = []
    for _ in range(3000):
        high = rng.choice((0, 1, rng.getrandbits(16), rng.getrandbits(32)))
        head = struct.pack("<IIIIIII", 6, 36, 0, high, rng.getrandbits(32), 4, 4)
        blocks.append(head + b"data" + struct.pack("<I", 36))
    data = section + interface + b"".join(blocks)
    bound = (1 << 63) - 1
    expected = [min(time, bound) for _, _, time, _ in one_by_one(data)[0]]
    assert [time for _, _, time, _ in in_batches(io.BytesIO(data))[0]] == expected


def test_blocks_of_other_kinds_between_all_packets():
    with read_capture(io.BytesIO(pcapng(4))) as reader:
        assert isinstance(reader, PcapngReader)
    other = struct.pack("<IIII", 0x0BAD, 16, 7, 16)
    packet = struct.pack("<IIIIIII", 6, 36, 0, 0, 1, 4, 4) + b"data" + struct.pack("<I", 36)
    start = io.BytesIO()
    PcapngWriter(start, [Interface()])
    assert same(start.getvalue() + (other + packet) * 4000) == 4000


@pytest.mark.parametrize("data", [pcap(2500), pcapng(2500)], ids=["pcap", "pcapng"])
def test_damage_is_told_in_the_same_words(data: bytes):
    rng = random.Random(2)
    damaged = 0
    for _ in range(60):
        bad = bytearray(data)
        if rng.random() < 0.4:
            del bad[rng.randrange(100, len(bad)) :]
        else:
            at = rng.randrange(24, len(bad) - 4)
            bad[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), rng.randbytes(4)))
        try:
            expected = one_by_one(bytes(bad))
        except CaptureError:
            continue
        damaged += expected[1] is not None
        assert in_batches(io.BytesIO(bytes(bad))) == expected
    assert damaged > 20


@pytest.mark.parametrize(
    ("at", "value"),
    [(4, 34), (4, 28), (4, 1 << 25), (8, 1), (20, 999), (32, 35), (0, 6 << 16)],
    ids=["unaligned", "short", "huge", "interface", "captured", "trailer", "type"],
)
@pytest.mark.parametrize("which", [1500, 1999], ids=["middle", "last"])
def test_a_bad_block_among_good_ones(which: int, at: int, value: int):
    """Behind the first thousand packets, which the reader takes one by one."""
    start = io.BytesIO()
    PcapngWriter(start, [Interface()])
    block = struct.pack("<IIIIIII", 6, 36, 0, 0, 1, 4, 4) + b"data" + struct.pack("<I", 36)
    data = bytearray(start.getvalue() + block * 2000)
    struct.pack_into("<I", data, len(start.getvalue()) + which * 36 + at, value)
    assert same(bytes(data)) == (1999 if at == 0 else which)
