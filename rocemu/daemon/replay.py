"""Plays the requester side of a capture into a live responder and compares the answers.

A request leaves when its time has come, and not before the answers that came before it in the
capture have come, or were waited for: a conversation stays one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rocemu.daemon.replay_answers import Answers, Difference
from rocemu.daemon.replay_link import CmLink, Link
from rocemu.daemon.replay_mapping import NumberMap, advertised_pairs
from rocemu.daemon.replay_script import ReplayError, Script, Step
from rocemu.net import DEFAULT_PORT
from rocemu.net.oneshot import OneShot
from rocemu.wire import psn_diff, service_port

__all__ = ["Outcome", "Pace", "ReplayOptions", "replay"]

#: Seconds in which answers that were not captured may still come.
_LINGER = 0.2


@dataclass(frozen=True, slots=True)
class Pace:
    """When requests leave; all None and False is the capture's own timing."""

    multiplier: float = 1.0
    packets_per_second: float | None = None
    top_speed: bool = False

    def due(self, captured_ns: int, count: int) -> float:
        """Seconds from the first request to one that was captured so much later, ``count`` having
        been sent before it."""
        if self.top_speed:
            return 0.0
        if self.packets_per_second is not None:
            return count / self.packets_per_second
        return max(0, captured_ns) / 1e9 / self.multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How to connect, what to map, when to send."""

    port: int | None = None
    """CM port; None is the captured one."""
    static: bool = False
    qpn: int | None = None
    remote_qpn: int | None = None
    remote_psn: int | None = None
    """Of a static connection; None is what the capture has."""
    raw: bool = False
    """Nothing is mapped and nobody asked: UDP payloads as they are."""
    rkeys: Mapping[int, int] = field(default_factory=dict)
    vas: Mapping[int, int] = field(default_factory=dict)
    pace: Pace = Pace()
    limit: int | None = None
    """Requests that are sent, at most."""
    patience: float = 2.0
    """Seconds that an answer may take."""


@dataclass(slots=True)
class Outcome:
    """What a replay came to."""

    sent: int = 0
    compared: int = 0
    coalesced: int = 0
    """Acknowledges that one side sent and the other's next answer covers."""
    differences: list[Difference] = field(default_factory=list)


def replay(
    script: Script,
    shot: OneShot,
    options: ReplayOptions,
    on_step: Callable[[Step, Difference | None], None] = lambda step, difference: None,
) -> Outcome:
    """Play one conversation through ``shot``; ``on_step`` hears of every packet when it is done.

    Raises NetError when there is no connection or nobody listens.
    """
    link = _link(script, shot, options)
    try:
        return _play(script, link, options, on_step)
    finally:
        link.close()


def _link(script: Script, shot: OneShot, options: ReplayOptions) -> Link:
    conversation, first = script.conversation, script.requests[0]
    if options.raw:
        return Link(shot, first.dest_qp, script.first_psn, script.own_qpn)
    if options.static:
        dest_qp = first.dest_qp if options.remote_qpn is None else options.remote_qpn
        psn = script.first_psn if options.remote_psn is None else options.remote_psn
        return Link(shot, dest_qp, psn, script.own_qpn if options.qpn is None else options.qpn)
    port = options.port
    if port is None and conversation.req is not None:
        port = service_port(conversation.req.service_id)
    return CmLink(shot, port or DEFAULT_PORT, conversation.req)


def _play(
    script: Script,
    link: Link,
    options: ReplayOptions,
    on_step: Callable[[Step, Difference | None], None],
) -> Outcome:
    rep = script.conversation.rep
    offset = psn_diff(link.psn, script.first_psn)
    captured_data = b"" if rep is None else rep.private_data
    pairs = advertised_pairs(captured_data, link.private_data)
    numbers = NumberMap(link.dest_qp, offset, pairs, options.rkeys, options.vas)
    answers = Answers(offset, link.receive, options.patience, None if rep is None else 0)
    outcome = Outcome()
    start, first = time.monotonic(), script.requests[0].packet.relative
    for step in script.steps:
        difference = None
        if not step.is_request:
            difference = answers.compare(step)
        elif outcome.sent == options.limit:
            break
        else:
            due = start + options.pace.due(step.packet.relative - first, outcome.sent)
            while (left := due - time.monotonic()) > 0:
                if (answer := link.receive(left)) is not None:
                    answers.keep(answer)
            link.shot.send(
                _untouched(step) if options.raw else numbers.rewrite(step.packet, link.shot.flow)
            )
            outcome.sent += 1
        if difference is not None:
            outcome.differences.append(difference)
        on_step(step, difference)
    outcome.differences += answers.rest(_LINGER)
    outcome.compared, outcome.coalesced = answers.compared, answers.coalesced
    return outcome


def _untouched(step: Step) -> bytes:
    layers = step.packet.layers
    if "udp" not in layers:
        raise ReplayError(f"packet {step.packet.number} has no UDP payload to send as it is")
    return step.packet.captured.data[layers["udp"][1] : layers["icrc"][1]]
