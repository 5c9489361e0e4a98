"""Scenario files: TOML into a :class:`Scenario`, every mistake a sentence that names its place."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rocemu.daemon.operations import LocalPlace
from rocemu.daemon.regions import RegionSpec
from rocemu.net import FaultRule
from rocemu.net.connection import ALL_REMOTE
from rocemu.net.rules import parse_time
from rocemu.protection import RegistrationError, parse_access
from rocemu.scenario.model import (
    Deregister,
    MemoryText,
    PacketText,
    Participant,
    Post,
    Receive,
    Scenario,
    ScenarioError,
    SetMemory,
    Step,
)
from rocemu.scenario.script import parse_script
from rocemu.scenario.world import DeviceEnd
from rocemu.transport import PROFILES, AddressVector, Profile, QPAttr, QPError
from rocemu.verbs import QPState, mtu_enum

__all__ = ["PARTICIPANTS", "load", "read_scenario", "region_names"]

#: The participants, left and right.  Either may do anything: the names say who begins.
PARTICIPANTS = ("requester", "responder")
_ADDRESSES = ("192.0.2.1", "192.0.2.2")
_QPNS, _PSNS = (0x11, 0x12), (0x100, 0x800200)


def load(path: Path) -> Scenario:
    """Read a file; raises :class:`ScenarioError`, and OSError when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"not TOML: {error}") from None
    return read_scenario(text, path.stem)


def read_scenario(text: str, name: str = "") -> Scenario:
    """A scenario from the text of a file; raises :class:`ScenarioError`."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"not TOML: {error}") from None
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    for key in tables:
        if key not in (*PARTICIPANTS, "both"):
            raise ScenarioError(f"table {key!r}: there are {', '.join(PARTICIPANTS)} and both")
    both = tables.get("both", {})
    head = {key: value for key, value in values.items() if not isinstance(value, dict)}
    for key in ("title", "script"):
        if key not in head:
            raise ScenarioError(f"key {key!r} is missing")
    ends = [
        _participant(name, {**both, **tables.get(name, {})}, index)
        for index, name in enumerate(PARTICIPANTS)
    ]
    left, right = ends
    left.attr.dest_qp_num, right.attr.dest_qp_num = right.qpn, left.qpn
    left.attr.rq_psn, right.attr.rq_psn = right.psn, left.psn
    for end, other in ((left, right), (right, left)):
        try:
            other.attr.av = AddressVector(end.address, other.tos, other.ttl)
        except QPError as error:
            raise ScenarioError(f"table {end.name!r}, key 'address': {error}") from None
    known = {key: _convert("", key, value, _HEAD) for key, value in head.items()}
    script = known.pop("script")
    steps = parse_script(script, left, right, text[: text.find(script)].count("\n") + 1)
    scenario = Scenario(name=name, left=left, right=right, steps=steps, **known)
    scenario.wire = any(isinstance(step.what, PacketText) for step in steps)
    _check_regions(scenario)
    for end in ends:
        _check_setup(end, scenario.seed)
    return scenario


def _check_setup(end: Participant, seed: int) -> None:
    """What a device refuses (rights that do not go together, keys given twice) is found here."""
    try:
        if not end.raw:
            DeviceEnd(end, seed)
    except (QPError, RegistrationError) as error:
        raise ScenarioError(f"table {end.name!r}: {error}") from None


def _participant(name: str, table: Mapping[str, Any], index: int) -> Participant:
    table = {key.replace("-", "_"): value for key, value in table.items()}
    end = Participant(name, _ADDRESSES[index], _QPNS[index], _PSNS[index])
    end.attr = QPAttr(qp_access_flags=ALL_REMOTE)
    for key, value in table.items():
        converted = _convert(name, key, value, {**_OWN, **_ATTRIBUTES})
        setattr(end.attr if key in _ATTRIBUTES else end, key, converted)
    end.attr.sq_psn = end.psn
    if end.raw and end.mr:
        raise ScenarioError(f"table {name!r}, key 'mr': a raw participant has no regions")
    for wanted in end.other_pd:
        if wanted not in [spec.name for spec in end.mr]:
            raise ScenarioError(f"table {name!r}, key 'other_pd': no region {wanted!r}")
    return end


def _convert(
    table: str, key: str, value: Any, converters: Mapping[str, Callable[[Any], Any]]
) -> Any:
    where = f"table {table!r}, key {key!r}" if table else f"key {key!r}"
    if key not in converters:
        raise ScenarioError(f"{where}: there is no such key; there are {', '.join(converters)}")
    try:
        return converters[key](value)
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from None


# ---------------------------------------------------------------------- values


def _number(least: int, most: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{value!r}: allowed are {least} to {most}")
        return value

    return convert


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: a text is needed")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r}: allowed are true and false")
    return value


def _list(convert: Callable[[str], Any]) -> Callable[[Any], list[Any]]:
    def convert_all(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError(f"{value!r}: a list is needed")
        return [convert(_text(item)) for item in value]

    return convert_all


def _state(value: Any) -> QPState:
    states = {state.name.removeprefix("IBV_QPS_"): state for state in list(QPState)[:4]}
    if _text(value).removeprefix("IBV_QPS_") not in states:
        raise ValueError(f"{value!r}: allowed are {', '.join(states)}")
    return states[value.removeprefix("IBV_QPS_")]


def _profile(value: Any) -> Profile:
    if _text(value) not in PROFILES:
        raise ValueError(f"{value!r}: allowed are {', '.join(PROFILES)}")
    return PROFILES[value]


_HEAD: dict[str, Callable[[Any], Any]] = {
    "title": _text,
    "about": _text,
    "covers": _list(str),
    "seed": _number(0, (1 << 63) - 1),
    "latency": lambda value: parse_time(_text(value)),
    "limit": lambda value: parse_time(_text(value)),
    "script": _text,
}
_OWN: dict[str, Callable[[Any], Any]] = {
    "raw": _flag,
    "address": _text,
    "qpn": _number(2, 0xFFFFFE),
    "psn": _number(0, 0xFFFFFF),
    "mr": _list(RegionSpec.parse),
    "other_pd": _list(str),
    "fault": _list(FaultRule.parse),
    "profile": _profile,
    "tos": _number(0, 255),
    "ttl": _number(1, 255),
    "migreq": _flag,
    "pkey": _number(1, 0xFFFF),
    "state": _state,
    "sq_sig_all": _flag,
    "send_cq": _number(1, 1 << 20),
    "recv_cq": _number(1, 1 << 20),
}
_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "qp_access_flags": lambda value: parse_access(_text(value)),
    "path_mtu": lambda value: mtu_enum(_number(256, 4096)(value)),
    "timeout": _number(0, 31),
    "retry_cnt": _number(0, 7),
    "rnr_retry": _number(0, 7),
    "min_rnr_timer": _number(0, 31),
    "max_rd_atomic": _number(0, 255),
    "max_dest_rd_atomic": _number(0, 255),
}

# ---------------------------------------------------------------------- names in the script


def _check_regions(scenario: Scenario) -> None:
    """Names of regions that lead nowhere are found before anything runs."""
    ends = {end.name: end for end in (scenario.left, scenario.right)}
    for step in scenario.steps:
        for who, name in region_names(step, scenario):
            regions = [spec.name for spec in ends[who].mr]
            if name not in regions:
                there_are = ", ".join(regions) or "none"
                what = f"{who} has no region {name!r}; there are {there_are}"
                raise ScenarioError(f"script, line {step.line}: {what}")


def region_names(step: Step, scenario: Scenario) -> list[tuple[str, str]]:
    """Participant and name of every region that a step names."""
    what, who = step.what, step.who
    if who is None:
        return []
    left, right = scenario.left.name, scenario.right.name
    peer = right if who == left else left
    match what:
        case Deregister():
            return [(who, what.region)]
        case SetMemory() | MemoryText():
            return [(who, what.place.name)]
        case Receive():
            return [(who, place.name) for place, _ in what.places]
        case Post():
            target, local = what.operation.target, what.operation.local
            names = [(peer, target.name)] if target and target.name else []
            return names + ([(who, local.name)] if local else [])
        case PacketText():
            values = [value for header in what.headers.values() for value in header.values()]
            return [(peer, value.name) for value in values if isinstance(value, LocalPlace)]
    return []
