"""Test vectors: a capture as text, for test benches of hardware and other implementations.

The first line is ``# rocemu vectors 1``; ``#`` begins a comment.  Every other line is a packet::

    ROLE NUMBER TO HEX NAME=VALUE ...

* ROLE is ``request``, ``answer`` (ACK, NAK, READ response, atomic response) or ``other`` (UD, the
  connection manager, CNP, malformed).
* NUMBER is the packet's in the capture, TO the numbers of the requests that an answer answers,
  joined by commas, ``-`` for none.  Answers stand behind their requests, as in the capture: what a
  test bench has to expect for a request are the answers that name it.
* HEX is the packet from its IP header (RoCEv1: its GRH) to the ICRC; ``-`` when it is to be built.
* The fields have Wireshark's names and values; ``tail`` is what is between the payload and the
  ICRC: the pad, or what of a malformed packet is no header.  They are all that is needed: the
  packet built of them is HEX, byte for byte.
"""

from __future__ import annotations

import io
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, TextIO

from rocemu.audit.conversations import MAX_CONVERSATIONS, Lane
from rocemu.audit.dissect import Dissected
from rocemu.audit.field_table import FIELDS, FIELDS_OF, TITLES
from rocemu.audit.fields import Field, Kind, Value, show, value_of
from rocemu.audit.filter_values import READERS
from rocemu.capture import CapturedPacket, CaptureReader, Interface, LinkType
from rocemu.capture.model import DamagedError
from rocemu.wire import HEADER_SIZES, Operation, psn_diff

__all__ = ["HEADING", "Vector", "VectorError", "VectorReader", "VectorWriter", "read_vectors"]

HEADING = "# rocemu vectors 1"

#: Layers in wire order, and their sizes where these do not follow from a field.
_SIZES: dict[str, int] = {
    "ip": 20,
    "ipv6": 40,
    "udp": 8,
    "grh": 40,
    "bth": 12,
    **{name.lower(): size for name, size in HEADER_SIZES.items()},
    "icrc": 4,
}
_LAYERS = ["ip", "ip:options", *(key for key in TITLES if key not in ("frame", "eth", "ip"))]
_WHOLE = ("ip:options", "immdt", "ieth", "cnppad", "mad", "payload")
_OUTSTANDING = 4096
_RAW, _ETHERNET = Interface(LinkType.RAW), Interface(LinkType.ETHERNET)


class VectorError(ValueError):
    """A line that is no vector; ``str()`` is a sentence with its number."""


def _leaves(layer: str) -> list[Field]:
    """Fields of a layer that say all its bits once: no parts of fields that are there."""
    if layer in _WHOLE:
        return [field for field in FIELDS_OF[layer] if not field.bits and field.get is None]
    chosen: list[Field] = []
    covered = 0
    for row in FIELDS_OF.get(layer, ()):
        bits = ((1 << row.bits) - 1) << row.start
        if row.get is None and row.bits and not covered & bits:
            covered |= bits
            chosen.append(row)
    return chosen


#: Layer -> fields that a vector has of it.
_LEAVES: dict[str, list[Field]] = {
    layer: _leaves(layer) + (_leaves(":remote") if layer in ("reth", "atomiceth") else [])
    for layer in _LAYERS
    if layer in _SIZES or layer in _WHOLE
}


@dataclass(slots=True)
class Vector:
    """One line."""

    role: str
    number: int
    to: tuple[int, ...]
    octets: bytes | None
    """None where the line has ``-``."""
    fields: dict[str, Value] = field(default_factory=dict)
    tail: bytes = b""

    def build(self) -> bytes:
        """The packet that the fields describe; raises ValueError for values that do not fit."""
        parts = [_build_layer(layer, self.fields) for layer in _LEAVES if layer != "icrc"]
        return b"".join([*parts, self.tail, _build_layer("icrc", self.fields)])

    @property
    def is_roce_v1(self) -> bool:
        return any(name.startswith("infiniband.grh.") for name in self.fields)


def _build_layer(layer: str, values: dict[str, Value]) -> bytes:
    rows = [row for row in _LEAVES[layer] if row.name in values]
    own = [row for row in rows if row.layer != ":remote"]
    if not own:
        return b""
    if layer in _WHOLE:
        return bytes(_octets(own[0], values))
    size = _SIZES[layer]
    word = 0
    for row in rows:
        value = values[row.name]
        if isinstance(value, (bytes, str)):
            value = int.from_bytes(_octets(row, values), "big")
        if not 0 <= value < 1 << row.bits:
            raise ValueError(f"{row.name}={value} does not fit into {row.bits} bits")
        word |= value << size * 8 - row.start - row.bits
    if layer == "ip":
        length = len(_build_layer("ip:options", values))
        word |= (0x40 | (size + length) // 4) << (size - 1) * 8
    return word.to_bytes(size, "big")


def _octets(row: Field, values: dict[str, Value]) -> bytes:
    value = values[row.name]
    if not isinstance(value, bytes):
        raise ValueError(f"{row.name} is {row.kind.value}")
    return value


class VectorWriter:
    """Writes packets as vectors, one after the other; memory does not grow with them."""

    def __init__(self, file: TextIO, title: str = "") -> None:
        self._file = file
        self._requests: OrderedDict[Lane, deque[tuple[int, int]]] = OrderedDict()
        self.written = 0
        self.left_out = 0
        """Packets that the capture cut: no vector can be made of them."""
        print(HEADING, file=file)
        if title:
            print(f"# {title}", file=file)
        print("# ROLE NUMBER TO HEX NAME=VALUE ...", file=file)

    def add(self, packet: Dissected) -> None:
        """RoCE packets alone; others are passed over."""
        if packet.bth is None:
            return
        if "icrc" not in packet.layers:
            self.left_out += 1
            return
        role, to = self._role(packet)
        start = next(packet.layers[key][0] for key in ("ip", "ipv6", "grh") if key in packet.layers)
        octets = packet.captured.data[start : packet.layers["icrc"][1]]
        words = [role, str(packet.number), ",".join(map(str, to)) or "-", octets.hex()]
        for layer, rows in _LEAVES.items():
            if layer in packet.layers:
                words += [f"{row.name}={_written(row, packet)}" for row in rows]
        ends = [span[1] for key, span in packet.layers.items() if key in _LEAVES and key != "icrc"]
        tail = packet.captured.data[max(ends) : packet.layers["icrc"][0]]
        if tail:
            words.append(f"tail={tail.hex()}")
        print(*words, file=self._file)
        self.written += 1

    def _role(self, packet: Dissected) -> tuple[str, list[int]]:
        if packet.packet is None or packet.placed is None or packet.packet.deth is not None:
            return "other", []
        info, psn, lane = packet.packet.info, packet.packet.bth.psn, packet.placed.lane
        if info.operation is Operation.CNP:
            return "other", []
        if info.is_request:
            waiting = self._requests.setdefault(lane, deque(maxlen=_OUTSTANDING))
            waiting.append((psn, packet.number))
            if len(self._requests) > MAX_CONVERSATIONS:
                self._requests.popitem(last=False)
            return "request", []
        return "answer", self._answered(packet, psn)

    def _answered(self, packet: Dissected, psn: int) -> list[int]:
        """The requests up to ``psn`` that wait; a part of a READ's answer is to the READ alone."""
        assert packet.placed is not None
        assert packet.packet is not None
        peer = packet.placed.lane.peer
        waiting = None if peer is None else self._requests.get(peer)
        if not waiting:
            return []
        answered = [number for asked, number in waiting if psn_diff(asked, psn) <= 0]
        if not packet.packet.info.ends_message:
            return answered[-1:]
        while waiting and psn_diff(waiting[0][0], psn) <= 0:
            waiting.popleft()
        return answered


def _written(row: Field, packet: Dissected) -> str:
    value = value_of(row, packet)
    assert value is not None  # the layer is whole
    if row.kind is Kind.BYTES and isinstance(value, bytes):
        return value.hex()
    return str(int(value)) if row.kind is Kind.BOOL and isinstance(value, int) else show(row, value)


def read_vectors(lines: Iterable[str]) -> Iterator[Vector]:
    """The vectors of a file; raises VectorError, also where fields and HEX differ."""
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            vector = _read_vector(text)
            if vector.octets is not None and vector.build() != vector.octets:
                raise ValueError("the fields do not give the bytes in HEX")
        except ValueError as error:
            raise VectorError(f"line {number}: {error}") from None
        yield vector


def _read_vector(text: str) -> Vector:
    words = text.split()
    if len(words) < 5:
        raise ValueError("ROLE NUMBER TO HEX NAME=VALUE ... is expected")
    role, number, to, octets, *pairs = words
    vector = Vector(
        role,
        int(number),
        () if to == "-" else tuple(map(int, to.split(","))),
        None if octets == "-" else bytes.fromhex(octets),
    )
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if name == "tail":
            vector.tail = bytes.fromhex(value)
        elif name not in FIELDS or not equals:
            raise ValueError(f"{pair!r} is no field with its value")
        else:
            vector.fields[name] = _read_value(FIELDS[name], value)
    return vector


def _read_value(row: Field, text: str) -> Value:
    try:
        value = bytes.fromhex(text) if row.kind is Kind.BYTES else READERS[row.kind](text)
    except (ValueError, KeyError):
        value = None
    if isinstance(value, (int, bytes)):
        return value
    raise ValueError(f"{row.name}={text}: no {row.kind.value}")


class VectorReader(CaptureReader):
    """Vectors as the packets of a capture: link type RAW, RoCEv1 behind an empty Ethernet header;
    no times."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, b"")
        self._text = io.TextIOWrapper(file, "ascii", "replace")

    def close(self) -> None:
        self._text.close()

    def _read_packets(self) -> Iterator[CapturedPacket]:
        try:
            for vector in read_vectors(self._text):
                data, interface = vector.build(), _RAW
                if vector.is_roce_v1:
                    data, interface = bytes(12) + b"\x89\x15" + data, _ETHERNET
                yield CapturedPacket(0, data, len(data), interface)
        except VectorError as error:
            raise DamagedError(str(error)) from None
