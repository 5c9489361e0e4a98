"""A capture in batches of thousands of packets, for those who think in columns.

Where records follow each other as they should, they are found by their lengths alone and their
headers read at once by numpy.  Everything else (other blocks, damage, the last bytes of a file,
formats without a scanner here) is left to the :class:`CaptureReader`, packet by packet: what a
file means is said there, and only there.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from rocemu.capture.blocks import Block
from rocemu.capture.model import MAX_BLOCK, SNAPLEN, CapturedPacket, CaptureReader
from rocemu.capture.pcap import PcapReader
from rocemu.capture.pcapng import PcapngReader

__all__ = ["SLACK", "Batch", "read_batches"]

#: Bytes behind the last packet of a batch that may be looked at; they mean nothing.
SLACK = 128
_CHUNK = 4 << 20
_FEW = 1024  # packets that the reader gives one by one are put together to at most so many
_LATEST = (1 << 63) - 1  # nanoseconds: no packet is from beyond the year 2262
_SECOND = 1_000_000_000
_RECORD = 16
_EPB = 28

Ints = NDArray[np.int64]
_Scanner = Callable[[Any, "_Ahead"], "Batch | None"]


@dataclass(slots=True)
class Batch:
    """Consecutive packets of a capture; arrays have one entry per packet."""

    data: bytearray
    """Holds the packets, each from its link header on, and :data:`SLACK` bytes more.

    Whoever has the batch may write into its packets: nobody reads them again."""
    starts: Ints
    """Where in ``data`` each begins."""
    sizes: Ints
    """Bytes captured."""
    originals: Ints
    """Bytes there were on the link."""
    times: Ints
    """Nanoseconds since 1970."""
    linktypes: Ints

    def __len__(self) -> int:
        return len(self.starts)


class _Ahead:
    """A file that was read ahead of its reader; stands in for it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._read = getattr(file, "read1", file.read)  # a pipe gives what it has
        self.buffer = bytearray(SLACK)
        """Behind what was read are SLACK bytes of nothing."""
        self.at = 0

    @property
    def end(self) -> int:
        return len(self.buffer) - SLACK

    def read(self, size: int) -> bytes:
        while self.end - self.at < size:
            chunk = self._read(_CHUNK)
            if not chunk:
                break
            rest = memoryview(self.buffer)[self.at : self.end]
            self.buffer = bytearray().join((rest, chunk, bytes(SLACK)))  # batches keep the old one
            self.at = 0
        data = bytes(self.buffer[self.at : min(self.at + size, self.end)])
        self.at += len(data)
        return data

    def close(self) -> None:
        self._file.close()


def read_batches(reader: CaptureReader) -> Iterator[Batch]:
    """All packets of a capture that nothing was read from yet; counts and ``damage`` as always."""
    scan: _Scanner | None = None
    if type(reader) is PcapReader:
        scan = _scan_pcap
    elif type(reader) is PcapngReader:
        scan = _scan_pcapng
    ahead = None
    if scan is not None:
        ahead = _Ahead(reader._file)
        reader._file = cast(BinaryIO, ahead)
    packets = iter(reader)
    while True:
        batch = scan(reader, ahead) if scan and ahead else None
        if batch is not None:
            reader.packets += len(batch)
            reader.cut += int(np.count_nonzero(batch.originals > batch.sizes))
            yield batch
        # The next record is not whole in the buffer, or no plain one.  Where that is so all the
        # time, batches would be tiny.
        count = 1 if batch is not None and len(batch) > _FEW else _FEW
        single = list(islice(packets, count))
        if single:
            yield _collect(single)
        if not single or reader.damage is not None:
            return


def _collect(packets: list[CapturedPacket]) -> Batch:
    sizes = _ints(len(packet.data) for packet in packets)
    return Batch(
        bytearray().join([packet.data for packet in packets] + [bytes(SLACK)]),
        np.cumsum(sizes) - sizes,
        sizes,
        _ints(packet.original_length for packet in packets),
        _ints(_bounded(packet.timestamp_ns) for packet in packets),
        _ints(packet.linktype for packet in packets),
    )


def _bounded(time: int) -> int:
    return min(time, _LATEST)


def _ints(values: Iterator[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _fields(data: bytearray, starts: Ints, words: int, order: str) -> NDArray[np.uint32]:
    """The 32-bit words from each of ``starts`` on, one row each."""
    window = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), words * 4)
    return cast("NDArray[np.uint32]", window[starts].view(f"{order}u4"))


def _scan_pcap(reader: PcapReader, ahead: _Ahead) -> Batch | None:
    """Records up to the end of what is there; None when there is no whole one."""
    buffer, at, last = ahead.buffer, ahead.at, ahead.end - _RECORD
    size_of = struct.Struct(f"{reader._order}8xI").unpack_from
    found: list[int] = []
    while at <= last:
        (size,) = size_of(buffer, at)
        following = at + _RECORD + size
        if size > SNAPLEN or following > last + _RECORD:
            break
        found.append(at)
        at = following
    if not found:
        return None
    ahead.at = at
    records = np.array(found, np.int64)
    fields = _fields(buffer, records, 4, reader._order).astype(np.int64)
    times = fields[:, 0] * _SECOND + fields[:, 1] * reader._unit
    return Batch(
        buffer,
        records + _RECORD,
        fields[:, 2],
        fields[:, 3],
        times,
        np.full(len(records), reader.interface.linktype, np.int64),
    )


def _scan_pcapng(reader: PcapngReader, ahead: _Ahead) -> Batch | None:
    """Enhanced packet blocks up to the first other block, or the end of what is there."""
    buffer, at, end = ahead.buffer, ahead.at, ahead.end
    order = reader._order
    blocks, at = _chain(buffer, at, end, order)
    if not len(blocks):
        return None
    fields = _fields(buffer, blocks, 7, order).astype(np.int64)
    again = _fields(buffer, blocks + fields[:, 1] - 4, 1, order)[:, 0]
    whole = (
        (again == fields[:, 1])
        & (fields[:, 2] < len(reader._sources))
        & (fields[:, 5] <= fields[:, 1] - _EPB - 4)
    )
    if not whole.all():  # the reader finds the words for it
        count = int(np.argmin(whole))
        at, blocks, fields = int(blocks[count]), blocks[:count], fields[:count]
    ahead.at = at
    if not len(blocks):
        return None
    linktypes = _ints(source.interface.linktype for source in reader._sources)
    return Batch(
        buffer,
        blocks + _EPB,
        fields[:, 5],
        fields[:, 6],
        _pcapng_times(reader, fields),
        linktypes[fields[:, 2]],
    )


def _chain(buffer: bytearray, at: int, end: int, order: str) -> tuple[Ints, int]:
    """Where enhanced packet blocks begin that follow each other from ``at`` on, and where the last
    one ends.

    Their type is a rare word: nearly always the places that have it are the chain, which is quicker
    seen than followed.
    """
    words = np.frombuffer(buffer, f"{order}u4", (end - at) // 4, at)
    found = np.flatnonzero(words[: len(words) - _EPB // 4] == Block.ENHANCED_PACKET)
    lengths = words[found + 1].astype(np.int64)
    if len(found) and found[0] == 0:
        ends = found * 4 + lengths
        chained = (ends[:-1] == found[1:] * 4) & (lengths[:-1] >= _EPB + 4)
        if chained.all():
            whole = _EPB + 4 <= lengths[-1] <= MAX_BLOCK and not lengths[-1] & 3
            kept = len(found) - (not whole or ends[-1] + at > end)
            return found[:kept] * 4 + at, int(ends[kept - 1]) + at if kept else at
    return _follow(buffer, at, end, order)


def _follow(buffer: bytearray, at: int, end: int, order: str) -> tuple[Ints, int]:
    header = struct.Struct(f"{order}II").unpack_from
    enhanced = int(Block.ENHANCED_PACKET)
    found: list[int] = []
    while at + _EPB + 4 <= end:
        kind, length = header(buffer, at)
        if kind != enhanced or not _EPB + 4 <= length <= MAX_BLOCK or length & 3:
            break
        if at + length > end:
            break
        found.append(at)
        at += length
    return np.array(found, np.int64), at


def _pcapng_times(reader: PcapngReader, fields: Ints) -> Ints:
    """Timestamps of blocks, by the resolution of the interface that each names."""
    units = fields[:, 3].astype(np.uint64) << np.uint64(32) | fields[:, 4].astype(np.uint64)
    times = np.zeros(len(units), np.int64)
    for number in np.unique(fields[:, 2]).tolist():
        source, rows = reader._sources[number], fields[:, 2] == number
        nanoseconds, rest = divmod(_SECOND, source._units)
        if not rest and int(units[rows].max()) * nanoseconds + abs(source._offset) < 1 << 62:
            exact = units[rows].astype(np.int64) * nanoseconds + source._offset
            times[rows] = np.where(exact < 0, 0, exact)
        else:  # finer than nanoseconds, or absurd
            times[rows] = [_bounded(source.time(unit)) for unit in units[rows].tolist()]
    return times
