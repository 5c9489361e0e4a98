"""Rules for faults on purpose, a little language:

    drop tx psn=+5 once                 dup rx opcode=ACKNOWLEDGE p=0.1
    delay tx 5ms nth=3                  reorder tx 2 every=10
    corrupt tx byte=20                  bad-icrc rx        ce rx

A rule is an action, a direction (``tx``: what this end sends, ``rx``: what comes to it), and
selectors, in any order.  :mod:`rocemu.net.faults` puts packets under them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from rocemu.wire import (
    OPCODES,
    PSN_MASK,
    AethKind,
    Operation,
    find_opcode,
    plain_name,
)

__all__ = [
    "Action",
    "Direction",
    "FaultError",
    "FaultRule",
    "OpcodeChoice",
    "PsnRange",
    "parse_time",
]


class FaultError(ValueError):
    """A rule that is none; ``str()`` quotes it and says what is allowed."""


class Action(StrEnum):
    """What happens to a packet."""

    DROP = "drop"
    DUP = "dup"
    """``dup N``: N copies more, 1 by default."""
    DELAY = "delay"
    """``delay TIME``: it goes on that much later."""
    REORDER = "reorder"
    """``reorder N``: it goes on behind the next N, 1 by default, or alone after a while."""
    CORRUPT = "corrupt"
    """All bits of byte ``byte=`` (0: the BTH's first) are flipped, of a random one by default."""
    BAD_ICRC = "bad-icrc"
    """The ICRC becomes one that is wrong for every IP ID."""
    CE = "ce"
    """Congestion experienced is marked in the IP header, as a switch does."""


class Direction(StrEnum):
    """Which way a packet goes, seen from the end that the rule is given to."""

    TX = "tx"
    RX = "rx"


class OpcodeChoice(NamedTuple):
    """Opcodes that a rule selects; of Acknowledges only those of one kind, if it says so."""

    values: frozenset[int]
    kind: AethKind | None = None


def _opcodes_of(*operations: Operation) -> OpcodeChoice:
    return OpcodeChoice(frozenset(o for o, info in OPCODES.items() if info.operation in operations))


_ACKNOWLEDGE = _opcodes_of(Operation.ACKNOWLEDGE).values
#: Classes of opcodes, by plain name.
_CLASSES: dict[str, OpcodeChoice] = {
    "request": OpcodeChoice(frozenset(o for o, info in OPCODES.items() if info.is_request)),
    "response": OpcodeChoice(frozenset(o for o, info in OPCODES.items() if not info.is_request)),
    "send": _opcodes_of(Operation.SEND),
    "write": _opcodes_of(Operation.RDMA_WRITE),
    "read": _opcodes_of(Operation.RDMA_READ),
    "atomic": _opcodes_of(Operation.COMPARE_SWAP, Operation.FETCH_ADD),
    "readresponse": _opcodes_of(Operation.READ_RESPONSE),
    "ack": OpcodeChoice(_ACKNOWLEDGE, AethKind.ACK),
    "nak": OpcodeChoice(_ACKNOWLEDGE, AethKind.NAK),
    "rnrnak": OpcodeChoice(_ACKNOWLEDGE, AethKind.RNR_NAK),
}
_CLASS_NAMES = "request, response, SEND, WRITE, READ, ATOMIC, READ_RESPONSE, ACK, NAK, RNR_NAK"


class PsnRange(NamedTuple):
    """PSNs from ``first`` to ``last``, absolute or counted from the connection's first."""

    first: int
    last: int
    relative: bool


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One rule; :meth:`parse` reads it."""

    text: str
    action: Action
    direction: Direction
    amount: float = 1
    """Copies (dup), seconds (delay), packets (reorder)."""
    byte: int | None = None
    qp: int | None = None
    """DestQP of the packet, or the queue pair of ours that it belongs to."""
    psns: PsnRange | None = None
    opcodes: OpcodeChoice | None = None
    nth: tuple[int, int] | None = None
    """Of the packets that all selectors above select, the first is 1."""
    every: int = 1
    once: bool = False
    probability: float | None = None
    most: int | None = None
    """How often at most for one PSN of a queue pair: loss that retries survive."""

    @classmethod
    def parse(cls, text: str) -> "FaultRule":
        """Read a rule; raises :class:`FaultError`."""
        try:
            return cls(text=" ".join(text.split()), **_read_words(text.split()))
        except ValueError as error:
            raise FaultError(f"fault {text!r}: {error}") from None


def parse_time(text: str) -> float:
    """Seconds of ``5ms``, ``1.5s``, ``20us``; raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text)
    if match is None:
        raise ValueError(f"{text!r} is no time: a number with us, ms or s, as in 5ms")
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]


# ---------------------------------------------------------------------- the language


def _read_words(words: list[str]) -> dict[str, Any]:
    if len(words) < 2:
        raise ValueError("the form is ACTION DIRECTION SELECTOR..., as in drop tx psn=+5 once")
    if words[0] not in list(Action):
        raise ValueError(f"no action {words[0]!r}; there are {', '.join(Action)}")
    if words[1] not in list(Direction):
        raise ValueError(f"direction {words[1]!r}: allowed are tx and rx")
    action = Action(words[0])
    found: dict[str, Any] = {"action": action, "direction": Direction(words[1])}
    for word in words[2:]:
        name, value = _read_word(action, word)
        if name in found:
            raise ValueError(f"{word!r}: this was said already")
        found[name] = value
    if action is Action.DELAY and "amount" not in found:
        raise ValueError("how long? as in delay tx 5ms")
    return found


def _read_word(action: Action, word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if word == "once":
        return "once", True
    if equals and name in _SELECTORS:
        field_name, reader = _SELECTORS[name]
        if name == "byte" and action is not Action.CORRUPT:
            raise ValueError(f"{word!r}: only corrupt takes byte=N")
        return field_name, reader(value)
    if equals or action not in _AMOUNTS:
        names = ", ".join(f"{n}=" for n in _SELECTORS if n != "byte" or action is Action.CORRUPT)
        raise ValueError(f"{word!r} is no selector; there are {names}, once")
    return "amount", _AMOUNTS[action](word)


def _number(least: int, most: int) -> Callable[[str], int]:
    """A reader of numbers of a range."""

    def read(text: str) -> int:
        try:
            number = int(text, 0)
        except ValueError:
            raise ValueError(f"{text!r} is no number (decimal, or hexadecimal with 0x)") from None
        if not least <= number <= most:
            raise ValueError(f"{text}: allowed are {least} to {most}")
        return number

    return read


_count = _number(1, 1 << 32)


def _read_psns(text: str) -> PsnRange:
    first, _, last = text.partition("..")
    last = last or first
    relative = first.startswith("+")
    if last.startswith("+") != relative:
        raise ValueError(f"psn={text}: both ends with +, or none")
    read = _number(0, PSN_MASK)
    psns = PsnRange(read(first.removeprefix("+")), read(last.removeprefix("+")), relative)
    if relative and psns.last < psns.first:
        raise ValueError(f"psn={text}: the end is before the beginning")
    return psns


def _read_nth(text: str) -> tuple[int, int]:
    first, _, last = text.partition("..")
    bounds = _count(first), _count(last or first)
    if bounds[1] < bounds[0]:
        raise ValueError(f"nth={text}: the end is before the beginning")
    return bounds


def _read_opcodes(text: str) -> OpcodeChoice:
    plain = plain_name(text)
    if plain in _CLASSES:
        return _CLASSES[plain]
    try:
        return OpcodeChoice(frozenset({find_opcode(text)}))
    except ValueError as error:
        raise ValueError(f"{error} Classes are {_CLASS_NAMES}") from None


def _read_probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError(f"p={text}: allowed are 0 to 1")
    return value


#: Selector -> field of the rule, reader of its value.
_SELECTORS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "qp": ("qp", _number(0, 0xFFFFFF)),
    "psn": ("psns", _read_psns),
    "opcode": ("opcodes", _read_opcodes),
    "nth": ("nth", _read_nth),
    "every": ("every", _count),
    "p": ("probability", _read_probability),
    "most": ("most", _count),
    "byte": ("byte", _number(0, 65535)),
}
_AMOUNTS: dict[Action, Callable[[str], float]] = {
    Action.DUP: _number(1, 1000),
    Action.DELAY: parse_time,
    Action.REORDER: _number(1, 1000),
}
