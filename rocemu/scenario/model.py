"""What a scenario file says, as values: two participants and the steps of the script."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rocemu.daemon.operations import LocalPlace, Operation
from rocemu.daemon.regions import RegionSpec
from rocemu.net import FaultRule
from rocemu.protection import Cause
from rocemu.transport import SPEC, Profile, QPAttr
from rocemu.verbs import AsyncEventType, QPState, WCStatus
from rocemu.wire import AethKind

__all__ = [
    "AnyPackets",
    "CompletionText",
    "Deregister",
    "DropText",
    "EventText",
    "MemoryText",
    "Modify",
    "PacketText",
    "Participant",
    "Post",
    "Receive",
    "Relative",
    "Scenario",
    "ScenarioError",
    "SetMemory",
    "StateText",
    "Step",
    "ViolationText",
    "Wait",
]


class ScenarioError(ValueError):
    """A file that is no scenario; ``str()`` names the table and key, or the line of the script."""


@dataclass(slots=True)
class Participant:
    """One end of the connection: an emulated device with one queue pair, or a scripted peer."""

    name: str
    address: str
    qpn: int
    psn: int
    """First PSN that it sends."""
    raw: bool = False
    """No device: what it sends is in the script, packet by packet."""
    mr: list[RegionSpec] = field(default_factory=list)
    other_pd: list[str] = field(default_factory=list)
    """Names of regions that are in another protection domain than the queue pair."""
    fault: list[FaultRule] = field(default_factory=list)
    profile: Profile = SPEC
    tos: int = 0
    ttl: int = 64
    migreq: bool = False
    pkey: int = 0xFFFF
    attr: QPAttr = field(default_factory=QPAttr)
    state: QPState = QPState.IBV_QPS_RTS
    sq_sig_all: bool = False
    send_cq: int | None = None
    """Completions that the queue has room for; they then stay in it until a line asks for them."""
    recv_cq: int | None = None


class Relative(NamedTuple):
    """A PSN counted from the first of its direction."""

    offset: int


@dataclass(slots=True)
class PacketText:
    """A packet as a line of the script gives it, to be sent by a scripted peer or expected."""

    to_right: bool
    opcode: int | None
    """None: ``data`` is all of it."""
    headers: dict[str, dict[str, int | Relative | LocalPlace]] = field(default_factory=dict)
    """Attribute of a :class:`~rocemu.wire.Packet` -> field -> value."""
    kind: AethKind | None = None
    """An Acknowledge of this kind, where no syndrome is named."""
    payload: bytes | None = None
    size: int | None = None
    """Bytes of the payload, whatever they are."""
    data: bytes = b""
    lost: bool = False
    corrupt: bool = False
    """The ICRC does not fit."""


@dataclass(slots=True)
class Post:
    """A work request; they are numbered from 1, and that is the wr_id."""

    operation: Operation


@dataclass(slots=True)
class Receive:
    """A receive; they are numbered from 1 on their own."""

    places: list[tuple[LocalPlace, int]]
    lkey: int | None = None


@dataclass(slots=True)
class Modify:
    state: QPState


@dataclass(slots=True)
class Deregister:
    region: str


@dataclass(slots=True)
class SetMemory:
    place: LocalPlace
    data: bytes


@dataclass(slots=True)
class Wait:
    """Nothing but time."""


@dataclass(slots=True)
class AnyPackets:
    """Any number of packets, up to the next one that a line names."""


@dataclass(slots=True)
class CompletionText:
    """A completion of the send queue, or of the receive queue."""

    receive: bool
    wr_id: int
    status: WCStatus
    fields: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class EventText:
    type: AsyncEventType


@dataclass(slots=True)
class StateText:
    state: QPState


@dataclass(slots=True)
class MemoryText:
    place: LocalPlace
    data: bytes


@dataclass(slots=True)
class ViolationText:
    causes: tuple[Cause, ...]


@dataclass(slots=True)
class DropText:
    reason: str


@dataclass(slots=True)
class Step:
    """One line of the script."""

    line: int
    text: str
    what: Any
    """One of the classes above."""
    who: str | None = None
    delay: float = 0.0
    """Seconds to wait before it is done."""
    window: tuple[float, float] | None = None
    """Seconds after the line before between which it must happen."""


@dataclass(slots=True)
class Scenario:
    """A whole file."""

    name: str
    title: str
    left: Participant
    right: Participant
    steps: list[Step]
    about: str = ""
    covers: list[str] = field(default_factory=list)
    seed: int = 1
    latency: float = 10e-6
    limit: float = 1.0
    """Seconds that something expected may take."""
    wire: bool = True
    """The script lists the packets on the wire; False where it names none."""
