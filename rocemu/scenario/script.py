"""The script of a scenario: one line, one thing that is done or expected.

    [TIME] NAME: ACTION            +5ms  requester: write rw+0 "hello"
    [TIME] NAME: EXPECTATION             responder: event IBV_EVENT_QP_ACCESS_ERR
    [TIME] > PACKET                      > RDMA WRITE Only  psn=+0 rkey=ro
    [TIME] < PACKET                      < NAK Remote Access Error  psn=+0 msn=0
    ...                            any number of packets

``>`` goes from the participant that is named first in the file to the other.  A packet whose sender
is scripted (``raw``) is sent, any other is expected.  TIME is how long an action waits (``+5ms``),
or the window in which something expected must come, both counted from the line before:
``+1ms..2ms``, ``+1ms..``, ``+..2ms``.
"""

import re
from collections.abc import Callable
from typing import Any

from rocemu.daemon.operations import OPERATION_VERBS, parse_data, parse_operations, parse_place
from rocemu.daemon.regions import parse_int, parse_size
from rocemu.net.rules import parse_time
from rocemu.protection import Cause
from rocemu.scenario.data import split
from rocemu.scenario.model import (
    AnyPackets,
    CompletionText,
    Deregister,
    DropText,
    EventText,
    MemoryText,
    Modify,
    Participant,
    Post,
    Receive,
    ScenarioError,
    SetMemory,
    StateText,
    Step,
    ViolationText,
    Wait,
)
from rocemu.scenario.packets import parse_packet
from rocemu.verbs import AsyncEventType, QPState, WCStatus

__all__ = ["ACTIONS", "parse_script"]

_TIME = re.compile(r"\+(\S+)(?:\s+(.*))?")
_NAMED = re.compile(r"([A-Za-z_][\w-]*):\s*(.*)")
_ENDLESS = float("inf")
#: Classes of steps that are done; every other is expected, except packets of scripted peers.
ACTIONS = (Post, Receive, Modify, Deregister, SetMemory, Wait)


def parse_script(
    text: str, left: Participant, right: Participant, first_line: int = 1
) -> list[Step]:
    """Read a script that begins at a line of the file; raises :class:`ScenarioError`."""
    steps = []
    for number, line in enumerate(text.splitlines(), first_line):
        body = _without_comment(line).strip()
        if body:
            try:
                steps.append(_read_line(number, body, left, right))
            except ValueError as error:
                raise ScenarioError(f"script, line {number}: {error}") from None
    return steps


def _without_comment(line: str) -> str:
    if "#" not in line:
        return line
    quoted = ""
    for place, letter in enumerate(line):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "\"'":
            quoted = letter
        elif letter == "#" and (not place or line[place - 1].isspace()):
            return line[:place]
    return line


def _read_line(number: int, body: str, left: Participant, right: Participant) -> Step:
    timed = _TIME.fullmatch(body)
    time, rest = (timed[1], timed[2] or "") if timed else ("", body)
    who = None
    if rest == "...":
        what: Any = AnyPackets()
    elif rest[:1] in (">", "<"):
        to_right = rest[0] == ">"
        what, who = parse_packet(rest[1:], to_right), (left if to_right else right).name
    elif not rest:
        what = Wait()
    else:
        what, who = _read_named(rest, left, right)
    step = Step(number, body, what, who)
    done = isinstance(what, ACTIONS) or (
        rest[:1] in (">", "<") and (left if rest[0] == ">" else right).raw
    )
    if not time:
        return step
    if done:
        step.delay = parse_time(time)
    elif ".." not in time or isinstance(what, AnyPackets):
        raise ValueError(f"+{time}: what is expected takes a window, +1ms..2ms, +1ms.. or +..2ms")
    else:
        least, _, most = time.partition("..")
        step.window = (
            parse_time(least) if least else 0.0,
            parse_time(most) if most else _ENDLESS,
        )
    return step


def _read_named(rest: str, left: Participant, right: Participant) -> tuple[Any, str]:
    named = _NAMED.fullmatch(rest)
    ends = {left.name: left, right.name: right}
    if named is None or named[1] not in ends:
        names = ", ".join(f"{name}:" for name in ends)
        raise ValueError(f"{rest!r}: a line begins with {names}, > or < (or a time before these)")
    who, words = named[1], split(named[2])
    verb = words[0] if words else ""
    if ends[who].raw:
        raise ValueError(f"{who} is raw: it sends and is sent packets, and has nothing else")
    if verb in OPERATION_VERBS:
        return Post(parse_operations([named[2]])[0]), who
    if verb not in _VERBS:
        there_are = ", ".join((*OPERATION_VERBS, *_VERBS))
        raise ValueError(f"no {verb!r}; there are {there_are}")
    form, reader = _VERBS[verb]
    try:
        return reader(words[1:]), who
    except IndexError:
        raise ValueError(f"the form is {verb} {form}") from None


# ---------------------------------------------------------------------- one reader a verb


def _recv(words: list[str]) -> Receive:
    receive = Receive([])
    for word in words:
        if word.startswith("lkey="):
            receive.lkey = parse_int(word[5:], "lkey", 0xFFFFFFFF)
            continue
        place, colon, size = word.partition(":")
        if not colon:
            raise ValueError(f"{word!r}: the form is recv NAME+OFFSET:LENGTH...")
        receive.places.append((parse_place(place), parse_size(size)))
    return receive


def _named_value(word: str, kind: Any, prefix: str) -> Any:
    known = {member.name.removeprefix(prefix): member for member in kind}
    found = known.get(word.upper().removeprefix(prefix))
    if found is None:
        raise ValueError(f"no {prefix}{word.removeprefix(prefix)}; there are {', '.join(known)}")
    return found


def _completion(receive: bool) -> Callable[[list[str]], CompletionText]:
    def read(words: list[str]) -> CompletionText:
        wr_id = parse_int(words[0], "wr_id", 1 << 32)
        status = _named_value(words[1], WCStatus, "IBV_WC_")
        values = {}
        for word in words[2:]:
            name, _, value = word.partition("=")
            if name not in ("byte_len", "imm", "vendor_err"):
                raise ValueError(f"{word!r}: allowed are byte_len=N, imm=N, vendor_err=N")
            key = "imm_data" if name == "imm" else name
            values[key] = parse_int(value, name, 0xFFFFFFFF)
        return CompletionText(receive, wr_id, status, values)

    return read


def _one(words: list[str]) -> str:
    if len(words) > 1:
        raise ValueError(f"{words[1]!r}: nothing belongs here")
    return words[0]


def _violation(words: list[str]) -> ViolationText:
    unknown = [word for word in words if word not in list(Cause)]
    if unknown or not words:
        raise ValueError(f"causes {' '.join(unknown) or 'are missing'}: {', '.join(Cause)}")
    return ViolationText(tuple(cause for cause in Cause if cause in words))


#: Verb -> what follows it, reader of the words.
_VERBS: dict[str, tuple[str, Callable[[list[str]], Any]]] = {
    "recv": ("NAME+OFFSET:LENGTH...", _recv),
    "modify": ("STATE", lambda words: Modify(_named_value(_one(words), QPState, "IBV_QPS_"))),
    "deregister": ("NAME", lambda words: Deregister(_one(words))),
    "set": (
        "NAME+OFFSET DATA",
        lambda words: SetMemory(parse_place(words[0]), parse_data(_one(words[1:]))),
    ),
    "completion": ("WR_ID STATUS", _completion(False)),
    "receive": ("WR_ID STATUS", _completion(True)),
    "event": (
        "NAME",
        lambda words: EventText(_named_value(_one(words), AsyncEventType, "IBV_EVENT_")),
    ),
    "state": ("NAME", lambda words: StateText(_named_value(_one(words), QPState, "IBV_QPS_"))),
    "memory": (
        "NAME+OFFSET DATA",
        lambda words: MemoryText(parse_place(words[0]), parse_data(_one(words[1:]))),
    ),
    "violation": ("CAUSE...", _violation),
    "drop": ("REASON", lambda words: DropText(_one(words))),
}
