"""From batches of a capture to what the audit needs of them, in this process or in another one.

Sifting a batch (headers, ICRCs, the rules of single packets) needs nothing of the batches before
it; following conversations does.  So a long capture is sifted by a child process, and followed by
this one, on two cores.
"""

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from rocemu.audit.columns import Columns, read_columns
from rocemu.audit.findings import Finding, Findings
from rocemu.audit.icrc_repair import damaged_header
from rocemu.audit.networks import Flags, Ints
from rocemu.audit.packet_checks import check_packets
from rocemu.audit.tables import CLASS, PacketClass
from rocemu.capture import CaptureReader
from rocemu.capture.batches import Batch, read_batches
from rocemu.wire import GSI_QPN, opcode_name

__all__ = ["LaneInfo", "Rows", "Sifted", "sift", "sift_all"]

_ALONE = 8  # batches that are not worth another process

LaneInfo = tuple[bytes, bytes, int, int]
"""Source, destination, UDP source port, destination QP."""


@dataclass(slots=True)
class Rows:
    """Packets whose conversation is to be followed: arrays with one entry each."""

    lane: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    """:class:`PacketClass`."""
    opcode: NDArray[np.uint8]
    psn: NDArray[np.uint32]
    payload: NDArray[np.int32]
    ackreq: Flags
    length: NDArray[np.uint32]
    """DMA length."""
    va: NDArray[np.uint64]
    aeth: NDArray[np.uint32]
    number: Ints
    time: Ints
    icrc: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.number)


@dataclass(slots=True)
class Sifted:
    """One batch."""

    packets: int
    roce: int
    icrc_right: int
    icrc_wrong: int
    icrc_unchecked: int
    congestion_marks: int
    findings: list[Finding]
    rows: Rows
    lanes: dict[int, LaneInfo]
    """Every lane of the rows and of ``damaged``."""
    mads: dict[int, bytes]
    """Packet number -> BTH to pad of what goes to QP 1."""
    unchecked: list[int]
    """The first and the last packet that the capture cut."""
    damaged: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Requests with a wrong ICRC: lane, opcode, PSN, number."""


def sift(batch: Batch, first: int) -> Sifted:
    """All that a batch says by itself; ``first`` is the number of its first packet."""
    found: list[Finding] = []
    findings = Findings(found.append)
    c = read_columns(batch, first)
    for row, ip in zip(c.at.near.tolist(), c.at.near_ip.tolist(), strict=True):
        end = int(batch.starts[row] + batch.sizes[row])
        what = damaged_header(bytes(batch.data[ip:end]))
        if what is not None:
            findings.add("header-damaged", (first + row,), f"the ICRC is right for {what}")
    bad = c.bad_icrc
    check_packets(c, findings)
    for row in np.flatnonzero(bad).tolist():
        stored, icrc = (int(n).to_bytes(4, "little").hex() for n in (c.stored[row], c.icrc[row]))
        text = f"{opcode_name(int(c.opcode[row]))}: ICRC {stored}, right is {icrc}"
        findings.add("icrc-bad", (int(c.number[row]),), text)
    findings.flush()
    kind = CLASS[c.opcode]
    rows = np.flatnonzero(c.readable & ~bad & (kind > 0))
    damaged = np.flatnonzero(c.readable & bad & (kind == PacketClass.REQUEST))
    cut = c.number[~c.checked & c.sound].tolist()
    to_gsi = rows[(kind[rows] == PacketClass.DATAGRAM) & (c.dest_qp[rows] == GSI_QPN)]
    return Sifted(
        packets=len(batch),
        roce=len(c),
        icrc_right=int((c.checked & ~bad).sum()),
        icrc_wrong=int(bad.sum()),
        icrc_unchecked=int((~c.checked).sum()),
        congestion_marks=int((c.at.ecn == 3).sum()),
        findings=found,
        rows=_rows(c, rows),
        lanes=_lanes(c, np.concatenate((rows, damaged))),
        mads={int(c.number[row]): c.packet(row) for row in to_gsi.tolist()},
        unchecked=[cut[0], cut[-1]] if cut else [],
        damaged=[
            (int(c.lane[row]), int(c.opcode[row]), int(c.psn[row]), int(c.number[row]))
            for row in damaged.tolist()
        ],
    )


def _rows(c: Columns, rows: Ints) -> Rows:
    return Rows(
        lane=c.lane[rows],
        kind=CLASS[c.opcode[rows]].astype(np.uint8),
        opcode=c.opcode[rows].astype(np.uint8),
        psn=c.psn[rows].astype(np.uint32),
        payload=c.payload[rows].astype(np.int32),
        ackreq=c.words[rows, 2] >= 1 << 31,
        length=c.dma_length[rows].astype(np.uint32),
        va=c.va[rows],
        aeth=c.aeth[rows].astype(np.uint32),
        number=c.number[rows],
        time=c.time[rows],
        icrc=c.stored[rows].astype(np.uint32),
    )


def _lanes(c: Columns, rows: Ints) -> dict[int, LaneInfo]:
    lanes: dict[int, LaneInfo] = {}
    numbers, at = np.unique(c.lane[rows], return_index=True)
    for number, row in zip(numbers.tolist(), rows[at].tolist(), strict=True):
        lanes[number] = (*c.addresses(row), int(c.at.source_port[row]), int(c.dest_qp[row]))
    return lanes


# both processes


def sift_all(reader: CaptureReader, *, processes: int = 1) -> Iterator[Sifted]:
    """Every batch of a capture in order; ``reader.damage`` is set when it ends.

    With two ``processes`` a child is forked once the capture turns out to be long.
    """
    sifted = _sift_here(reader)
    if processes < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return sifted
    return _sift_there(reader, sifted)


def _sift_here(reader: CaptureReader) -> Iterator[Sifted]:
    first = 1
    for batch in read_batches(reader):
        yield sift(batch, first)
        first += len(batch)


def _sift_there(reader: CaptureReader, sifted: Iterator[Sifted]) -> Iterator[Sifted]:
    short = True
    for count, batch in enumerate(islice(sifted, _ALONE), 1):
        yield batch
        short = count < _ALONE
    if short:
        return
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_send_all, args=(reader, sifted, here, there), daemon=True
    )
    child.start()
    there.close()
    try:
        while not isinstance(message := here.recv(), _End):
            yield message
        reader.damage, reader.packets, reader.cut = message.damage, message.packets, message.cut
    except EOFError:
        raise RuntimeError("the process that reads the capture died") from None
    finally:
        here.close()  # a child that still writes gets a broken pipe
        child.join()


@dataclass(frozen=True, slots=True)
class _End:
    damage: str | None
    packets: int
    cut: int


def _send_all(
    reader: CaptureReader, sifted: Iterator[Sifted], here: Connection, there: Connection
) -> None:
    """The child: it has the reader and the iterator as they were when it was forked."""
    here.close()
    try:
        for batch in sifted:
            there.send(batch)
        there.send(_End(reader.damage, reader.packets, reader.cut))
    except (BrokenPipeError, KeyboardInterrupt):
        return  # the parent is gone, or goes
