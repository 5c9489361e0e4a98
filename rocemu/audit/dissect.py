"""A captured frame taken apart: layers, packet, the verdict on its ICRC, conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address

from rocemu.audit.conversations import Conversations, Placed
from rocemu.audit.field_table_cm import CM_LAYERS
from rocemu.capture import CapturedPacket, LinkType, Located, Network, locate, udp_frame
from rocemu.wire import (
    BTH,
    GSI_QPN,
    HEADER_SIZES,
    ICRC_SIZE,
    MAD_SIZE,
    OPCODES,
    ROCE_PORT,
    Packet,
    WireError,
    icrc_of_ip,
    parse,
    service_port,
)
from rocemu.wire.icrc import icrc_of_grh

__all__ = ["Dissected", "Dissector", "Icrc"]

_CM_CLASS = 7
_MAPPED = bytes(10) + b"\xff\xff"


class Icrc(StrEnum):
    """The verdict on the ICRC of a packet."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """The capture cut the packet, or there is no room for an ICRC."""


@dataclass(slots=True)
class Dissected:
    """A frame of a capture.

    ``layers`` has the place of every header in ``captured.data`` (start, end), in wire order; its
    keys are those of :data:`rocemu.audit.field_table.TITLES`.
    """

    number: int
    """From 1, as Wireshark counts: frames that are not RoCE too."""
    captured: CapturedPacket
    network: Network
    relative: int = 0
    """Nanoseconds since the first frame; ``delta``: since the previous one."""
    delta: int = 0
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    source: str = ""
    """Addresses in text; empty where there are none."""
    destination: str = ""
    bth: BTH | None = None
    packet: Packet | None = None
    """None when it is no RoCE packet, or one that cannot be read."""
    problems: tuple[str, ...] = ()
    """What is wrong with a RoCE packet, in words."""
    icrc: Icrc | None = None
    """None: not RoCE."""
    icrc_stored: int | None = None
    """As Wireshark shows it: its bytes read as a big-endian number."""
    icrc_computed: int | None = None
    placed: Placed | None = None

    @property
    def is_roce(self) -> bool:
        """Whether the frame is RoCE, by its UDP port or Ethertype alone."""
        return "infiniband" in self.layers

    @property
    def conversation(self) -> int | None:
        """Number of its conversation; final when the whole capture was read."""
        return self.placed.lane.conversation.number if self.placed else None


class Dissector:
    """Takes the frames of one capture apart, one after the other."""

    def __init__(self) -> None:
        self.conversations = Conversations()
        self.frames = 0
        self.roce = 0
        """Of these, RoCE packets."""
        self.others: Counter[Network] = Counter()
        """Those that are not RoCE, by what they are."""
        self.verdicts: Counter[Icrc] = Counter()
        self.problems = 0
        """RoCE packets with something wrong besides the ICRC."""
        self._first_time: int | None = None
        self._last_time = 0

    def dissect_all(self, packets: Iterable[CapturedPacket]) -> Iterator[Dissected]:
        return map(self.dissect, packets)

    def dissect(self, captured: CapturedPacket) -> Dissected:
        """Whatever the frame holds: never raises for its bytes."""
        self.frames += 1
        time = captured.timestamp_ns
        if self._first_time is None:
            self._first_time = self._last_time = time
        found = locate(captured.linktype, captured.data)
        packet = Dissected(
            self.frames, captured, found.network, time - self._first_time, time - self._last_time
        )
        self._last_time = time
        _network_layers(packet, found)
        if _is_roce(packet, found):
            self.roce += 1
            _roce_layers(packet, found)
            self._place(packet)
            self.verdicts[packet.icrc or Icrc.UNKNOWN] += 1
            self.problems += bool(packet.problems)
        else:
            self.others[found.network] += 1
        return packet

    def _place(self, packet: Dissected) -> None:
        if packet.packet is not None:
            packet.placed = self.conversations.place(
                packet.source, packet.destination, packet.packet
            )
        elif packet.bth is not None:
            packet.placed = self.conversations.place_unreadable(
                packet.source, packet.destination, packet.bth.dest_qp
            )


def _network_layers(packet: Dissected, found: Located) -> None:
    data = packet.captured.data
    layers = packet.layers
    layers["frame"] = (0, len(data))
    at = found.network_at
    if packet.captured.linktype == LinkType.ETHERNET and len(data) >= 14:
        layers["eth"] = (0, 14)
    match found.network:
        case Network.IPV4:
            end = at + (data[at] & 15) * 4
            layers["ip"] = (at, end)
            if end > at + 20:
                layers["ip:options"] = (at + 20, end)
        case Network.IPV6:
            layers["ipv6"] = (at, at + 40)
        case Network.GRH:
            packet.source, packet.destination = _gid(data, at + 8), _gid(data, at + 24)
        case _:
            return
    if found.udp is not None:
        layers["udp"] = (found.udp, found.udp + 8)
        udp = udp_frame(found, data)
        if udp is not None:
            packet.source, packet.destination = udp.flow.source, udp.flow.destination


def _gid(data: bytes, at: int) -> str:
    """A GID in text; one that is a mapped IPv4 address as that."""
    octets = data[at : at + 16]
    if octets.startswith(_MAPPED):
        return str(IPv4Address(octets[12:]))
    return str(IPv6Address(octets))


def _is_roce(packet: Dissected, found: Located) -> bool:
    if found.network is Network.GRH:
        return True
    if found.udp is None:
        return False
    ports = packet.captured.data[found.udp : found.udp + 4]
    return ROCE_PORT in (int.from_bytes(ports[:2], "big"), int.from_bytes(ports[2:], "big"))


def _roce_layers(packet: Dissected, found: Located) -> None:
    data, layers = packet.captured.data, packet.layers
    start, end = found.payload or 0, found.end
    cut = end > len(data)
    layers["infiniband"] = (found.network_at if found.network is Network.GRH else start, end)
    if found.network is Network.GRH:
        layers["grh"] = (found.network_at, found.network_at + 40)
    problems = []
    if cut:
        problems.append(f"cut: {end - len(data)} bytes were not captured")
    if min(end, len(data)) - start < BTH.SIZE:
        packet.icrc = Icrc.UNKNOWN
        problems.append(f"RoCE by port only: {end - start} bytes, no room for a BTH")
        packet.problems = tuple(problems)
        return
    packet.bth = BTH.unpack(data, start)
    layers["bth"] = (start, start + BTH.SIZE)
    try:
        packet.packet = _parse(data, start, end - ICRC_SIZE)
    except WireError as error:
        problems.append(f"malformed: {error}")
    _header_layers(packet, packet.bth, start + BTH.SIZE, end - ICRC_SIZE)
    _check_icrc(packet, found, cut)
    packet.problems = tuple(problems)


def _parse(data: bytes, start: int, end: int) -> Packet | None:
    """The packet; None where the capture cut its headers.

    A payload that was cut is filled up with zeros: its length is right, and nobody looks into it.
    A MAD is what there is of it.  Raises WireError for what is no packet.
    """
    packet = parse(data[start:end].ljust(end - start, b"\0"))
    headers = start + BTH.SIZE + packet.info.header_bytes
    if headers > len(data):
        return None
    if end > len(data) and packet.bth.dest_qp == GSI_QPN:
        packet.payload = data[headers:end]
    return packet


def _header_layers(packet: Dissected, bth: BTH, at: int, end: int) -> None:
    """Extension headers, and what is behind them; of a malformed packet what there is room for."""
    layers, data = packet.layers, packet.captured.data
    info = OPCODES.get(bth.opcode)
    if info is None:
        return
    for name in info.headers:
        size = HEADER_SIZES[name]
        if at + size > min(len(data), end):
            return
        layers[name.lower()] = (at, at + size)
        at += size
        if name in ("RETH", "AtomicETH"):
            layers[":remote"] = layers[name.lower()]
    if "aeth" in layers:
        layers[f"aeth:{data[layers['aeth'][0]] >> 5 & 3}"] = layers["aeth"]
    end -= bth.pad
    if end - at == MAD_SIZE and "deth" in layers and bth.dest_qp == GSI_QPN:
        _mad_layers(layers, data, at)
    elif end > at:
        layers["payload"] = (at, end)


def _mad_layers(layers: dict[str, tuple[int, int]], data: bytes, at: int) -> None:
    layers["mad"] = (at, at + MAD_SIZE)
    attribute = int.from_bytes(data[at + 16 : at + 18], "big")
    if len(data) < at + MAD_SIZE or data[at + 1] != _CM_CLASS or attribute not in CM_LAYERS:
        return
    layer, body = CM_LAYERS[attribute], at + 24
    span = body, at + MAD_SIZE
    layers[layer] = span
    if layer != "cm.req":
        return
    for name, gid in (("local", body + 56), ("remote", body + 72)):
        layers[f"cm.req:{name}{4 if data[gid : gid + 12] == _MAPPED else 6}"] = span
    if service_port(int.from_bytes(data[body + 8 : body + 16], "big")) is None:
        layers["cm.req:private"] = span
        return
    private = body + 140, at + MAD_SIZE
    layers["cm.req:service"] = span
    layers["cm.req:ip"] = private
    layers[f"cm.req:ip{6 if data[private[0] + 1] >> 4 == 6 else 4}"] = private


def _check_icrc(packet: Dissected, found: Located, cut: bool) -> None:
    start, end = found.network_at, found.end
    if cut or end - ICRC_SIZE < (found.payload or 0) + BTH.SIZE:
        packet.icrc = Icrc.UNKNOWN
        return
    data = packet.captured.data
    packet.layers["icrc"] = (end - ICRC_SIZE, end)
    covered = data[start : end - ICRC_SIZE]
    compute = icrc_of_grh if found.network is Network.GRH else icrc_of_ip
    computed = compute(covered).to_bytes(4, "little")
    packet.icrc_stored = int.from_bytes(data[end - ICRC_SIZE : end], "big")
    packet.icrc_computed = int.from_bytes(computed, "big")
    packet.icrc = Icrc.RIGHT if packet.icrc_stored == packet.icrc_computed else Icrc.WRONG
