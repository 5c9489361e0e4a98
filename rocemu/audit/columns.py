"""A batch of captured packets as columns: one array per field, one entry per RoCE packet.

What :func:`rocemu.wire.parse` and :func:`rocemu.wire.icrc_of_ip` say of one packet is said here of
thousands at once; the tests hold the two against each other.
"""

from dataclasses import dataclass
from itertools import repeat

import numpy as np
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from rocemu.audit.networks import GRH, IPV4, Flags, Ints, Networks, find_roce, windows
from rocemu.audit.tables import AETH_WORD, HEADER_BYTES, RETH_WORD, VA_WORD
from rocemu.capture.batches import Batch
from rocemu.wire import BTH, ICRC_SIZE

__all__ = ["Columns", "read_columns"]

_WORDS = 13  # BTH and extension headers: the longest are RD's, RDETH, DETH and AtomicETH
_ONES = crc32(b"\xff" * 8)  # the masked local route header, with which every ICRC begins
_ODD = tuple(np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


@dataclass(slots=True)
class Columns:
    """RoCE packets of a batch; offsets are absolute, into ``data``."""

    data: bytearray
    at: Networks
    """Where everything is."""
    number: Ints
    """In the capture, counted from 1."""
    time: Ints
    """Nanoseconds since 1970."""
    sound: Flags
    """The lengths of the headers agree, and there is room for a BTH and an ICRC."""
    readable: Flags
    """Sound, of version 0, with all headers captured and room for the pad; of a reserved opcode
    the BTH is all there is of headers."""
    words: Ints
    """BTH and what follows as 32-bit words, a row for each packet."""
    opcode: Ints
    dest_qp: Ints
    psn: Ints
    pad: Ints
    payload: Ints
    """Bytes; less than 0 when the headers do not fit."""
    lane: NDArray[np.uint64]
    """One number for sender, receiver, source port and destination QP together."""
    checked: Flags
    """The ICRC was verified: whole packets with sound lengths."""
    icrc: Ints
    """As computed."""
    stored: Ints
    """As in the packet."""

    def __len__(self) -> int:
        return len(self.number)

    @property
    def bad_icrc(self) -> Flags:
        bad: Flags = self.checked & (self.icrc != self.stored)
        return bad

    def field(self, table: Ints, word: int = 0) -> Ints:
        """A word of an extension header; ``table`` says per opcode where that header begins.

        Rows whose opcode has no such header get a word of the BTH: leave them out.
        """
        return self.words[np.arange(len(self)), table[self.opcode] + word]

    @property
    def dma_length(self) -> Ints:
        """The RETH's length; 0 for packets without RETH."""
        return np.where(RETH_WORD[self.opcode] > 0, self.field(RETH_WORD, 3), 0)

    @property
    def aeth(self) -> Ints:
        """Syndrome in bits 31:24, MSN below; 0 for packets without AETH."""
        return np.where(AETH_WORD[self.opcode] > 0, self.field(AETH_WORD), 0)

    def addresses(self, row: int) -> tuple[bytes, bytes]:
        """Source and destination, 4 or 16 bytes."""
        ip = int(self.at.ip[row])
        at, size = (ip + 12, 4) if self.at.network[row] == IPV4 else (ip + 8, 16)
        return bytes(self.data[at : at + size]), bytes(self.data[at + size : at + 2 * size])

    @property
    def va(self) -> NDArray[np.uint64]:
        """The virtual address in RETH or AtomicETH; nonsense for packets without."""
        high, low = self.field(VA_WORD), self.field(VA_WORD, 1)
        return high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)

    def packet(self, row: int) -> bytes:
        """BTH to pad; byte 4, which the ICRC masks, is all ones."""
        return bytes(self.data[int(self.at.bth[row]) : int(self.at.end[row]) - ICRC_SIZE])


def read_columns(batch: Batch, first: int) -> Columns:
    """The RoCE packets of a batch whose first packet has number ``first``, their ICRCs computed.

    For the CRC the variable header fields are overwritten with ones in ``batch.data``.
    """
    at = find_roce(batch)
    words = windows(batch.data, 4 * _WORDS)[at.bth].view(">u4").astype(np.int64)
    opcode = words[:, 0] >> 24
    pad = words[:, 0] >> 20 & 3
    dest_qp = words[:, 1] & 0xFFFFFF
    size = at.end - at.bth
    headers = BTH.SIZE + HEADER_BYTES[opcode]
    payload = size - ICRC_SIZE - headers - pad
    sound = (at.spare >= 0) & (size >= BTH.SIZE + ICRC_SIZE) & ~at.fragment
    readable = sound & (payload >= 0) & (at.bth + headers <= at.captured)
    readable &= words[:, 0] >> 16 & 15 == 0
    lane = _lanes(batch, at, dest_qp)
    checked = sound & (at.end <= at.captured)
    icrc, stored = _icrcs(batch.data, at, checked)
    return Columns(
        data=batch.data,
        at=at,
        number=first + at.rows,
        time=batch.times[at.rows],
        sound=sound,
        readable=readable,
        words=words,
        opcode=opcode,
        dest_qp=dest_qp,
        psn=words[:, 2] & 0xFFFFFF,
        pad=pad,
        payload=payload,
        lane=lane,
        checked=checked,
        icrc=icrc,
        stored=stored,
    )


def _lanes(batch: Batch, at: Networks, dest_qp: Ints) -> NDArray[np.uint64]:
    """Addresses, source port and destination QP, mixed into 64 bits."""
    four = at.network == IPV4
    start = at.ip + np.where(four, 12, 8)
    size = 8 if four.all() else 32
    parts = windows(batch.data, size)[start].view(">u8").astype(np.uint64)
    parts[four, 1:] = 0
    ports = (dest_qp << 16 | at.source_port).astype(np.uint64)
    mixed = (ports + _ODD[2]) * _ODD[0]
    for column in range(4):
        word = parts[:, column] if column < size // 8 else np.uint64(0)
        mixed = (mixed ^ (mixed >> np.uint64(29)) ^ word) * _ODD[column & 1]
    return mixed ^ (mixed >> np.uint64(32))


def _icrcs(data: bytearray, at: Networks, checked: Flags) -> tuple[Ints, Ints]:
    """Computed and stored ICRC of the checked packets (0 for the others), see wire.icrc."""
    view = np.frombuffer(data, np.uint8)
    four = checked & (at.network == IPV4)
    long = checked & ~four  # IPv6 and GRH are masked alike
    view[at.ip[long]] |= 0x0F
    for starts, offsets in (
        (at.ip[four], (1, 8, 10, 11)),
        (at.ip[long], (1, 2, 3, 7)),
        (at.bth[checked & (at.network != GRH)], (-2, -1)),
        (at.bth[checked], (4,)),
    ):
        view[np.add.outer(starts, offsets)] = 0xFF
    rows = np.flatnonzero(checked)
    tails = at.end[rows] - ICRC_SIZE
    memory = memoryview(data)
    icrc, stored = np.zeros(len(checked), np.int64), np.zeros(len(checked), np.int64)
    packets = map(memory.__getitem__, map(slice, at.ip[rows].tolist(), tails.tolist()))
    icrc[rows] = list(map(crc32, packets, repeat(_ONES)))
    stored[rows] = windows(data, 4)[tails].view("<u4")[:, 0]
    return icrc, stored
