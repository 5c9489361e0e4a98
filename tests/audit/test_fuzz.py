"""Damaged files through every reader and every output of ``rocemu inspect``: a sentence, no more.

Seconds come from ``ROCEMU_FUZZ_SECONDS``; a failure names the seed that repeats it
(``ROCEMU_FUZZ_SEED``).
"""

import gzip
import io
import json
import os
import random
import time
from itertools import count

from rocemu.audit.dissect import Dissector
from rocemu.audit.filter import compile_filter
from rocemu.audit.ladder import Ladder
from rocemu.audit.ladder_export import mermaid, svg
from rocemu.audit.listing import hex_lines, line, record, tree_lines
from rocemu.audit.sequence import Sequences
from rocemu.audit.tally import Tally
from rocemu.audit.vectors import VectorReader, VectorWriter, read_vectors
from rocemu.capture import CapturedPacket, CaptureError, Interface, PcapngWriter, read_capture
from rocemu.capture.model import CaptureReader
from tests.audit.made import frames, golden_captures
from tests.capture.test_erf import records

SECONDS = float(os.environ.get("ROCEMU_FUZZ_SECONDS", "12"))
#: A packet of every field and every kind of comparison: whatever is in the bytes is looked at.
FILTER = compile_filter(
    "infiniband.bth[4:1] == 40 || infiniband.cm.req.ip_cm.sip4 == 10.0.0.0/8 || "
    'frame.comment matches "a+" || ip.addr != 10.0.0.1 || frame contains 12:b7 || '
    "infiniband.aeth.syndrome.error_code in {1..3} || frame[-3:] > 00"
)


class Kept(io.BytesIO):
    """A file whose bytes can be had after it was closed."""

    def close(self) -> None:
        pass


def pcapng(data: list[bytes]) -> bytes:
    file = Kept()
    interface = Interface(name="fuzzed")
    writer = PcapngWriter(file, [interface], comment="a comment")
    for number, frame in enumerate(data):
        writer.write(CapturedPacket(number, frame, len(frame), interface, ("a comment",)))
    return file.getvalue()


def seeds() -> list[bytes]:
    files = [path.read_bytes() for path in golden_captures()]
    made = frames()
    files += [pcapng(made[at : at + 20]) for at in range(0, len(made), 20)]
    return [*files, gzip.compress(files[0]), records()]


def mutated(rng: random.Random, files: list[bytes]) -> bytes:
    data = bytearray(rng.choice(files))
    for _ in range(rng.choice((1, 1, 2, 4, 16, 64))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + rng.randrange(1, 40)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 40))
            case 3:
                other = rng.choice(files)
                cut = rng.randrange(len(other))
                data[at : at + 64] = other[cut : cut + rng.randrange(200)]
            case _:
                data[at : at + 1] = rng.choice((b"\0", b"\xff", b"\x7f", rng.randbytes(1)))
        if not data:
            break
    return bytes(data)


def inspect(reader: CaptureReader) -> str:
    """Everything that ``rocemu inspect`` can do, at once; gives the vectors."""
    tally, sequences, vectors = Tally(), Sequences(), io.StringIO()
    writer, copy = VectorWriter(vectors), PcapngWriter(Kept())
    dissector = Dissector()
    for packet in dissector.dissect_all(reader):
        assert FILTER(packet) in (True, False)
        assert line(packet).isprintable()
        json.dumps(record(packet))
        assert all(text.isprintable() for text in tree_lines(packet))
        for text in hex_lines(packet.captured.data):
            assert text.isascii()
        copy.write(packet.captured)
        for output in (tally, sequences, writer):
            output.add(packet)
    ladder = Ladder(100, 17)
    for sequence in sequences.conversations():
        for row in sequence.rows:
            ladder.row(row.entry, str(row.number))
    svg(sequences.conversations())
    mermaid(sequences.conversations())
    for conversation in tally.conversations():
        json.dumps(conversation.record())
    return vectors.getvalue()


def test_damaged_files_are_a_sentence_and_a_count() -> None:
    fixed = os.environ.get("ROCEMU_FUZZ_SEED")
    in_ci = os.environ.get("ROCEMU_CI") == "1"
    seed = int(fixed) if fixed else 0 if in_ci else random.SystemRandom().getrandbits(32)
    files = seeds()
    end = time.monotonic() + SECONDS
    inspected = 0
    for number in count(seed):
        try:
            inspected += one(random.Random(number), files)
        except Exception as error:
            raise AssertionError(f"ROCEMU_FUZZ_SEED={number}") from error
        if fixed or time.monotonic() > end:
            break
    assert fixed or inspected > 20


def one(rng: random.Random, files: list[bytes]) -> int:
    """Read a damaged file, and damaged vectors of it; gives how many packets there were."""
    try:
        reader = read_capture(io.BytesIO(mutated(rng, files)))
    except CaptureError as error:
        if "\n" in str(error):
            raise AssertionError(f"not a sentence: {error}") from None
        return 0
    vectors = inspect(reader)
    assert reader.damage is None or "\n" not in reader.damage
    for vector in read_vectors(vectors.splitlines()):
        assert vector.build() == vector.octets
    for packet in VectorReader(io.BytesIO(mutated(rng, [vectors.encode()]))):
        Dissector().dissect(packet)
    return reader.packets
