"""What ``rocemu inspect`` reads from, and what it can do with the packets."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocemu.audit.dissect import Dissected, Dissector, Icrc
from rocemu.audit.ladder import STYLES, Ladder, Look
from rocemu.audit.ladder_export import mermaid, svg
from rocemu.audit.listing import hex_lines, line, record, tree_lines
from rocemu.audit.sequence import Sequences, look_of
from rocemu.audit.tally import ConversationTally, LaneTally, Tally
from rocemu.audit.vectors import HEADING, VectorReader, VectorWriter
from rocemu.capture import (
    CaptureError,
    CaptureReader,
    PcapngReader,
    PcapngWriter,
    create_file,
    open_file,
    read_capture,
)
from rocemu.capture.compression import decompressed, peek
from rocemu.capture.model import DamagedError
from rocemu.cli import CommandError

__all__ = [
    "CaptureOutput",
    "ConversationTable",
    "LadderOutput",
    "Listing",
    "Output",
    "VectorOutput",
    "create_output",
    "devour_stdout",
    "open_input",
    "summary",
]

_TABLE_WIDTH = 200  # wider than most terminals: a line that is broken says more than one cut
_QUIET_LOOKS = (Look.REQUEST, Look.ANSWER, Look.CM)


def open_input(path: str) -> CaptureReader:
    """A capture or a file of vectors, compressed or not; ``-`` is standard input."""
    file = open_file(path)
    try:
        file = decompressed(file)
        if peek(file, len(HEADING)) == HEADING.encode():
            return VectorReader(file)
        return read_capture(file)
    except (CaptureError, DamagedError) as error:
        file.close()
        raise CommandError(f"{path}: {error}") from None


def create_output(path: str, *, force: bool) -> BinaryIO:
    """A new file, standard output for ``-``; one that exists is overwritten with ``force``."""
    try:
        return create_file(path, replace=force)
    except FileExistsError:
        raise CommandError(f"{path} exists; --force overwrites it") from None


def devour_stdout() -> None:
    """The reader of our output went away: what is buffered goes nowhere, without complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Output(Protocol):
    """Takes packets one after the other, and finishes after the last one."""

    def add(self, packet: Dissected) -> None: ...
    def finish(self) -> Iterator[str]:
        """Write what is left; gives sentences for standard error."""

    def close(self) -> None:
        """Let go of files, whatever happened."""


class Listing:
    """Packets on standard output: a line, a tree, hex, or JSON."""

    def __init__(self, *, tree: bool, hexdump: bool, as_json: bool, live: bool) -> None:
        self._tree, self._hexdump, self._as_json = tree, hexdump, as_json
        self._live = live
        self._console = Console(highlight=False, soft_wrap=True) if sys.stdout.isatty() else None

    def add(self, packet: Dissected) -> None:
        for text in self._lines(packet):
            look = look_of(packet)
            if self._console is None or look is None or look in _QUIET_LOOKS:
                print(text)
            else:
                self._console.print(Text(text, STYLES[look]))
        if self._live:
            sys.stdout.flush()

    def _lines(self, packet: Dissected) -> Iterator[str]:
        if self._as_json:
            yield json.dumps(record(packet), ensure_ascii=False)
            return
        if not self._tree:
            yield line(packet)
        if self._tree:
            yield from tree_lines(packet)
        if self._hexdump:
            yield from hex_lines(packet.captured.data)
        if self._tree or self._hexdump:
            yield ""

    def finish(self) -> Iterator[str]:
        sys.stdout.flush()
        yield from ()

    def close(self) -> None:
        """Standard output stays open."""


class CaptureOutput:
    """Packets into a pcapng, as they were: interfaces, comments, nanoseconds."""

    def __init__(self, path: str, *, force: bool, source: str, live: bool) -> None:
        self._file = create_output(path, force=force)
        comment = f"selected from {source} by rocemu inspect"
        self._writer = PcapngWriter(self._file, comment=comment, application="rocemu")
        self._live = live

    def add(self, packet: Dissected) -> None:
        self._writer.write(packet.captured)
        if self._live:
            self._writer.flush()

    def finish(self) -> Iterator[str]:
        self._writer.close()
        yield from ()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


class VectorOutput:
    """Packets as test vectors (docs/captures.md)."""

    def __init__(self, path: str, *, force: bool, source: str) -> None:
        self._file = io.TextIOWrapper(create_output(path, force=force), "ascii", "replace")
        self._writer = VectorWriter(self._file, source)

    def add(self, packet: Dissected) -> None:
        self._writer.add(packet)

    def finish(self) -> Iterator[str]:
        self._file.close()
        if self._writer.left_out:
            yield f"{self._writer.left_out} packets are not whole: no vectors of these"

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


class LadderOutput:
    """Sequence ladders: on standard output, as SVG, as Mermaid."""

    def __init__(
        self, shown: bool, svg_path: str | None, mermaid_path: str | None, *, force: bool
    ) -> None:
        self._sequences = Sequences()
        self._shown = shown
        self._files = [
            (create_output(path, force=force), draw)
            for path, draw in ((svg_path, svg), (mermaid_path, mermaid))
            if path
        ]

    def add(self, packet: Dissected) -> None:
        self._sequences.add(packet)

    def finish(self) -> Iterator[str]:
        conversations = self._sequences.conversations()
        if self._shown:
            console = Console(highlight=False, soft_wrap=True)
            ladder = Ladder(min(console.width, 140) if console.is_terminal else 120, margin=17)
            for sequence in conversations:
                left, right = sequence.conversation.ends
                console.print(ladder.header(f" {left}", f"{right} "))
                last = 0
                for row in sequence.rows:
                    margin = f"{row.number:>5} {row.time / 1e9:>10.6f}"
                    console.print(ladder.row(row.entry, margin if row.number != last else ""))
                    last = row.number
                console.print()
        for file, draw in self._files:
            file.write(draw(conversations).encode())
            file.close()
        if self._sequences.left_out:
            yield f"{self._sequences.left_out} packets more than a ladder can show are left out"

    def close(self) -> None:
        for file, _ in self._files:
            with suppress(OSError):
                file.close()


_COLUMNS = (
    "#", "ends", "", "transport", "packets", "payload", "requests", "again", "NAKs", "ICRC wrong",
    "problems", "start", "duration", "paired by",
)  # fmt: skip


class ConversationTable:
    """One row a conversation; pairs of numbers are left to right / right to left."""

    def __init__(self, *, as_json: bool) -> None:
        self._tally = Tally()
        self._as_json = as_json

    def add(self, packet: Dissected) -> None:
        self._tally.add(packet)

    def finish(self) -> Iterator[str]:
        conversations = self._tally.conversations()
        if self._as_json:
            for conversation in conversations:
                print(json.dumps(conversation.record()))
        else:
            table = Table(box=None, pad_edge=False)
            for name in _COLUMNS:
                table.add_column(name, justify="left" if name in _COLUMNS[1:4] else "right")
            for conversation in conversations:
                table.add_row(*_row(conversation))
            Console(highlight=False, width=_TABLE_WIDTH).print(table)
        sys.stdout.flush()
        if self._tally.left_out:
            yield f"{self._tally.left_out} packets of more conversations are left out"

    def close(self) -> None:
        """Standard output stays open."""


def _row(tally: ConversationTally) -> Iterator[str]:
    def both(name: str) -> str:
        left, right = (_number(lane, name) for lane in tally.lanes)
        return f"{left} / {right}"

    yield str(tally.conversation.number)
    yield from map(str, tally.conversation.ends)
    yield tally.transports
    yield from (both("packets"), both("payload"), both("requests"), both("again"))
    yield ", ".join(f"{count} {name}" for name, count in tally.naks.items()) or "0"
    yield str(tally.total("icrc_wrong"))
    yield str(tally.total("problems"))
    yield f"{tally.start / 1e9:.6f}"
    yield f"{tally.duration / 1e9:.6f}"
    yield tally.conversation.pairing.value


def _number(lane: LaneTally | None, name: str) -> int:
    return getattr(lane, name) if lane is not None else 0


def summary(dissector: Dissector, reader: CaptureReader, path: str) -> Iterator[str]:
    """What was read, in sentences for standard error."""
    right, wrong, unknown = (dissector.verdicts[verdict] for verdict in Icrc)
    said = [f"{right} with the right ICRC", f"{wrong} with a wrong one"]
    if unknown:
        said.append(f"{unknown} whose ICRC cannot be verified")
    if dissector.problems:
        said.append(f"{dissector.problems} with a problem")
    yield f"{dissector.frames} frames, {dissector.roce} RoCE: {', '.join(said)}"
    others = ", ".join(f"{count} {kind.value}" for kind, count in dissector.others.items())
    if others:
        yield f"not RoCE: {others}"
    if reader.cut:
        yield f"{reader.cut} frames were cut by the snap length"
    if isinstance(reader, PcapngReader) and reader.bad_options:
        yield f"{reader.bad_options} blocks with options of a wrong size"
    if dissector.conversations.forgotten:
        yield f"{dissector.conversations.forgotten} directions were forgotten for lack of room"
    if reader.damage:
        yield f"{path}: {reader.damage}"
