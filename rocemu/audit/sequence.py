"""What happens in a conversation, step by step: packets, and what follows from them at each end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rocemu.audit.conversations import Conversation, Lane
from rocemu.audit.dissect import Dissected, Icrc
from rocemu.audit.ladder import Arrow, Look, Note
from rocemu.audit.listing import cm_words, header_words
from rocemu.verbs import QPState, WCStatus
from rocemu.wire import (
    RNR_TIMERS_MS,
    AethKind,
    CmAttribute,
    CmMessage,
    NakCode,
    Operation,
    aeth_kind,
    opcode_name,
)

__all__ = ["MAX_STEPS", "Row", "Sequence", "Sequences", "look_of"]

#: Steps that are kept: nobody looks at a longer ladder, and memory must not grow with the file.
MAX_STEPS = 20_000

_ERR = f"QP -> {QPState.IBV_QPS_ERR.name}"
_RTS = f"QP -> {QPState.IBV_QPS_RTS.name}"

#: NAK code -> the status of the request at its sender; both ends' queue pairs go to ERR.
_FATAL = {
    NakCode.INVALID_REQUEST: WCStatus.IBV_WC_REM_INV_REQ_ERR,
    NakCode.REMOTE_ACCESS_ERROR: WCStatus.IBV_WC_REM_ACCESS_ERR,
    NakCode.REMOTE_OPERATIONAL_ERROR: WCStatus.IBV_WC_REM_OP_ERR,
    NakCode.INVALID_RD_REQUEST: WCStatus.IBV_WC_REM_INV_RD_REQ_ERR,
}

#: CM message -> what its sending says of the sender, and its receipt of the receiver.
_CM_NOTES: dict[CmAttribute, tuple[str, str]] = {
    CmAttribute.REP: (_RTS, ""),
    CmAttribute.RTU: (_RTS, "established"),
    CmAttribute.REJ: ("", "connection rejected"),
    CmAttribute.DREQ: (_ERR, ""),
    CmAttribute.DREP: (_ERR, ""),
}


class _Step(NamedTuple):
    number: int
    time: int
    lane: Lane
    label: str
    look: Look
    notes: tuple[tuple[bool, str, bool], ...]
    """(at the sender, text, bad)"""


class Row(NamedTuple):
    """A line of a ladder; notes have the number and time of the packet before them."""

    number: int
    time: int
    """Nanoseconds since the first frame of the capture."""
    entry: Arrow | Note


@dataclass(slots=True)
class Sequence:
    """The rows of one conversation; left is ``conversation.ends[0]``."""

    conversation: Conversation
    rows: list[Row] = field(default_factory=list)


class Sequences:
    """Collects the steps of all conversations, in the order of the capture."""

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self._limit = limit
        self._steps: list[_Step] = []
        self.left_out = 0
        """Packets beyond the limit."""

    def add(self, packet: Dissected) -> None:
        """Packets that belong to no conversation are passed over."""
        if packet.placed is None or packet.bth is None:
            return
        if len(self._steps) >= self._limit:
            self.left_out += 1
            return
        look, notes = _meaning(packet)
        self._steps.append(
            _Step(packet.number, packet.relative, packet.placed.lane, _label(packet), look, notes)
        )

    def conversations(self) -> list[Sequence]:
        """By number, as they are paired now."""
        found: dict[int, Sequence] = {}
        for step in self._steps:
            conversation = step.lane.conversation
            sequence = found.setdefault(conversation.number, Sequence(conversation))
            sequence.rows.extend(_rows(step))
        return [found[number] for number in sorted(found)]


def _rows(step: _Step) -> Iterator[Row]:
    to_right = step.lane.sender == 0
    yield Row(step.number, step.time, Arrow(to_right, step.label, step.look))
    for at_sender, text, bad in step.notes:
        yield Row(step.number, step.time, Note(at_sender != to_right, text, bad))


def _label(packet: Dissected) -> str:
    assert packet.bth is not None
    assert packet.placed is not None
    if packet.placed.cm is not None:
        words = [cm_words(packet.placed.cm)]
    else:
        words = [opcode_name(packet.bth.opcode), f"PSN {packet.bth.psn}"]
        words += header_words(packet.packet)
    if packet.placed.repeated:
        words.append("(again)")
    return "  ".join(words)


def look_of(packet: Dissected) -> Look | None:
    """How a packet is coloured; None for what belongs to no conversation."""
    return None if packet.placed is None else _meaning(packet)[0]


_Notes = tuple[tuple[bool, str, bool], ...]


def _meaning(packet: Dissected) -> tuple[Look, _Notes]:
    """How an arrow looks, and what follows from the packet; (at the sender, text, bad)."""
    assert packet.placed is not None
    if packet.icrc is Icrc.WRONG:
        return Look.BROKEN, ((False, "dropped: ICRC wrong", True),)
    if packet.packet is None:
        return Look.BROKEN, tuple((False, problem, True) for problem in packet.problems)
    if packet.placed.cm is not None:
        return Look.CM, _cm_notes(packet.placed.cm)
    aeth, info = packet.packet.aeth, packet.packet.info
    if aeth is not None and aeth_kind(aeth.syndrome) is AethKind.RNR_NAK:
        wait, psn = RNR_TIMERS_MS[aeth.syndrome & 31], packet.packet.bth.psn
        return Look.RNR, ((False, f"waits {wait:g} ms, then sends PSN {psn}", False),)
    if aeth is not None and aeth_kind(aeth.syndrome) is AethKind.NAK:
        return Look.NAK, _nak_notes(aeth.syndrome & 31, packet.packet.bth.psn)
    if info.operation is Operation.CNP:
        return Look.RNR, ((False, "sends more slowly", False),)
    if packet.placed.repeated:
        return Look.RETRY, ()
    return (Look.REQUEST if info.is_request else Look.ANSWER), ()


def _nak_notes(code: int, psn: int) -> _Notes:
    if code == NakCode.PSN_SEQUENCE_ERROR:
        return ((False, f"goes back to PSN {psn}", False),)
    if code not in _FATAL:
        return ()
    status = _FATAL[NakCode(code)]
    return ((True, _ERR, True), (False, f"{status.name}, {_ERR}", True))


def _cm_notes(message: CmMessage) -> _Notes:
    sender, receiver = _CM_NOTES.get(type(message).ATTRIBUTE, ("", ""))
    bad = type(message).ATTRIBUTE is CmAttribute.REJ
    notes = ((True, sender, False), (False, receiver, bad))
    return tuple(note for note in notes if note[1])
