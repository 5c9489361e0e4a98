"""What of a capture is played again: the requests of a conversation, and the answers to compare.

Of a conversation one end is the requester: the active side of the connection manager's exchange,
or else who sent a request first.  Its RC requests are played, the answers of the other end are what
the live ones are held against.  Whatever else was captured is counted and left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rocemu.audit.dissect import Dissected, Dissector, Icrc
from rocemu.audit.lanes import Conversation
from rocemu.capture import CaptureReader
from rocemu.wire import OPCODES

__all__ = ["ReplayError", "Script", "Step", "read_scripts"]


class ReplayError(Exception):
    """A capture that cannot be played, or options that do not fit it; ``str()`` is a sentence."""


@dataclass(frozen=True, slots=True)
class Step:
    """A packet of the script: a request that is sent, or an answer that is awaited."""

    packet: Dissected
    is_request: bool

    @property
    def psn(self) -> int:
        assert self.packet.bth is not None
        return self.packet.bth.psn

    @property
    def dest_qp(self) -> int:
        assert self.packet.bth is not None
        return self.packet.bth.dest_qp


@dataclass(slots=True)
class Script:
    """One conversation of a capture, in the order of the capture."""

    conversation: Conversation
    steps: list[Step] = field(default_factory=list)
    left_out: int = 0
    """Packets of the conversation that are not played: the answers of the requester to requests of
    the other end, those requests, and what is not RC."""
    requester: int | None = None

    @property
    def requests(self) -> list[Step]:
        return [step for step in self.steps if step.is_request]

    @property
    def first_psn(self) -> int:
        """The PSN that the captured responder expected first."""
        rep = self.conversation.rep
        return self.requests[0].psn if rep is None else rep.starting_psn

    @property
    def own_qpn(self) -> int | None:
        """The captured requester's queue pair; None where no answer shows it."""
        answers = [step.dest_qp for step in self.steps if not step.is_request]
        return answers[0] if answers else None


def read_scripts(reader: CaptureReader) -> list[Script]:
    """All conversations that have a request; packets are held in memory.

    Raises :class:`ReplayError` for a damaged file, for one without a request to play, and for a
    request that was not captured whole.
    """
    scripts: dict[int, Script] = {}
    dissector = Dissector()
    packets = list(filter(_counts, dissector.dissect_all(reader)))
    if reader.damage:
        raise ReplayError(reader.damage)
    for packet in packets:
        assert packet.placed is not None  # by _counts
        conversation = packet.placed.lane.conversation
        _add(scripts.setdefault(conversation.number, Script(conversation)), packet)
    found = [script for script in scripts.values() if script.requests]
    if not found:
        what = f"{dissector.frames} frames, {dissector.roce} of them RoCE"
        raise ReplayError(f"no RC request to play: {what}")
    for script in found:
        for step in script.requests:
            if step.packet.icrc is Icrc.UNKNOWN:
                raise ReplayError(f"packet {step.packet.number} was not captured whole")
    return found


def _counts(packet: Dissected) -> bool:
    """Whether it is a packet between queue pairs, and no message of the connection manager."""
    return packet.bth is not None and packet.placed is not None and packet.placed.cm is None


def _add(script: Script, packet: Dissected) -> None:
    assert packet.bth is not None
    assert packet.placed is not None
    opcode, sender = packet.bth.opcode, packet.placed.lane.sender
    info = OPCODES.get(opcode)
    is_request = info is None or info.is_request
    if opcode >> 5:  # another transport, CNP
        script.left_out += 1
        return
    if script.requester is None and is_request:
        script.requester = 0 if script.conversation.req is not None else sender
    if is_request == (sender == script.requester):
        script.steps.append(Step(packet, is_request))
    else:
        script.left_out += 1
