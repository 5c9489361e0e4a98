"""The gallery: every file comes out, covers the fault tables, fails when anything is altered."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocemu.protection import Cause
from rocemu.scenario import OnWire, Scenario, load, model, play
from rocemu.scenario.compare import differences, spell
from rocemu.scenario.packets import parse_packet
from rocemu.scenario.world import World
from rocemu.transport import SPEC, requester
from rocemu.transport.faults import FAULTS, Fault, FaultRow
from rocemu.verbs import AsyncEventType, QPState, WCStatus
from rocemu.wire import NakCode

FILES = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))

#: The RC rows of the tables "Responder Error Behavior Summary" and "Requester Side Error Behavior".
#: Left out is what nothing here can provoke: another local error of the responder's queue pair,
#: and failures to bind a window or to invalidate locally, which there are no operations for.
ROWS = {
    "responder: local protection error of a receive",
    "responder: PSN ahead",
    "responder: no receive",
    "responder: reserved opcode",
    "responder: operation not enabled",
    "responder: First or Only out of sequence",
    "responder: Middle or Last out of sequence",
    "responder: misaligned atomic",
    "responder: too many READs and atomics",
    "responder: length error",
    "responder: length error with a receive",
    "responder: R_Key violation",
    "responder: R_Key violation with a receive",
    "responder: remote invalidate failed",
    "responder: completion queue overrun",
    "responder: invalid duplicate atomic",
    "responder: header violations, ICRC, P_Key",
    "responder: duplicate SEND or WRITE",
    "responder: duplicate READ",
    "responder: duplicate atomic",
    "responder: silence after a fatal NAK",
    "requester: timeout within the limit",
    "requester: NAK 0x60 within the limit",
    "requester: implied NAK within the limit",
    "requester: RNR NAK within the limit",
    "requester: timeout, limit reached",
    "requester: RNR NAK, limit reached",
    "requester: NAK 0x61, 0x62, 0x63",
    "requester: local protection error",
    "requester: READ response length error",
    "requester: bad response opcode",
    "requester: completion queue overrun",
    "requester: ghost ACK, unknown NAK, malformed response",
}

gallery = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@gallery
def test_everything_comes_as_expected(file: Path) -> None:
    report = play(load(file))
    assert report.good, f"{report.difference}\n" + "\n".join(report.also)


@gallery
def test_the_same_file_gives_the_same_packets(file: Path) -> None:
    runs: list[list[tuple[float, bytes]]] = []
    for _ in range(2):
        seen: list[tuple[float, bytes]] = []
        play(load(file), lambda entry, seen=seen: seen.append((entry.when, entry.datagram)))  # type: ignore[misc]
        runs.append(seen)
    assert runs[0] == runs[1]
    assert runs[0]


def test_the_gallery_covers_every_row_and_names_no_other() -> None:
    assert {row for file in FILES for row in load(file).covers} == ROWS


# ---------------------------------------------------------------------- altered expectations

_OTHER: dict[type, Callable[[Any], Any]] = {
    model.CompletionText: lambda what: replace(what, status=WCStatus.IBV_WC_GENERAL_ERR),
    model.EventText: lambda what: replace(what, type=AsyncEventType.IBV_EVENT_PATH_MIG),
    model.StateText: lambda what: replace(what, state=QPState.IBV_QPS_SQE),
    model.MemoryText: lambda what: replace(what, data=bytes(b ^ 1 for b in what.data)),
    model.ViolationText: lambda what: replace(what, causes=(*what.causes, Cause.QP)),
    model.DropText: lambda what: replace(what, reason=what.reason + "s"),
    model.PacketText: lambda what: replace(
        what, headers={**what.headers, "bth": {**what.headers["bth"], "psn": 0x654321}}
    ),
}
_STRICT = (model.CompletionText, model.EventText, model.PacketText)


def expectations(scenario: Scenario) -> Iterator[int]:
    """Places in the script of everything that is expected."""
    ends = {end.name: end for end in (scenario.left, scenario.right)}
    for place, step in enumerate(scenario.steps):
        if isinstance(step.what, model.PacketText):
            if not ends[step.who or ""].raw:
                yield place
        elif type(step.what) in _OTHER:
            yield place


@gallery
def test_an_altered_expectation_is_found_at_its_line(file: Path) -> None:
    for place in expectations(load(file)):
        scenario = load(file)
        step = scenario.steps[place]
        step.what = _OTHER[type(step.what)](step.what)
        difference = play(scenario).difference
        assert difference is not None, step.text
        assert difference.step is step, step.text


@gallery
def test_what_no_line_expects_is_a_difference(file: Path) -> None:
    for place in expectations(load(file)):
        scenario = load(file)
        step = scenario.steps.pop(place)
        if isinstance(step.what, _STRICT):
            assert not play(scenario).good, step.text


@gallery
def test_a_window_that_is_missed_is_a_difference(file: Path) -> None:
    for place, step in enumerate(load(file).steps):
        if step.window is not None:
            for window in ((step.window[1] + 1e-3, 1.0), (0.0, step.window[0] / 2)):
                scenario = load(file)
                scenario.steps[place].window = window
                assert not play(scenario).good, f"{step.text}: {window}"


# ---------------------------------------------------------------------- broken code


def failing(scenarios: list[Scenario]) -> list[str]:
    return [scenario.name for scenario in scenarios if not play(scenario).good]


def with_faults(fault: Fault, row: FaultRow) -> list[Scenario]:
    """The gallery with devices that have another row in the fault table."""
    profile = replace(SPEC, faults={**FAULTS, fault: row})
    scenarios = [load(file) for file in FILES]
    for scenario in scenarios:
        for end in (scenario.left, scenario.right):
            if end.profile is SPEC:
                end.profile = profile
    return scenarios


@pytest.mark.parametrize("fault", list(FAULTS), ids=lambda fault: fault.name)
def test_another_nak_for_a_fault_is_noticed(fault: Fault) -> None:
    row = FAULTS[fault]
    other = NakCode.REMOTE_OPERATIONAL_ERROR
    nak = NakCode.INVALID_REQUEST if row.nak is other else other
    assert failing(with_faults(fault, row._replace(nak=nak)))


@pytest.mark.parametrize("fault", list(FAULTS), ids=lambda fault: fault.name)
def test_another_completion_and_event_for_a_fault_are_noticed(fault: Fault) -> None:
    row = FAULTS[fault]._replace(
        receive_status=WCStatus.IBV_WC_GENERAL_ERR, event=AsyncEventType.IBV_EVENT_PATH_MIG
    )
    assert failing(with_faults(fault, row))


@pytest.mark.parametrize("code", [1, 2, 3])
def test_another_status_for_a_nak_is_noticed(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = WCStatus.IBV_WC_GENERAL_ERR
    monkeypatch.setitem(requester.NAK_STATUS, NakCode(code), wrong)
    assert failing([load(file) for file in FILES])


def test_an_rnr_wait_that_is_too_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    short = tuple(timer * 0.9 for timer in requester.RNR_TIMERS_MS)
    monkeypatch.setattr(requester, "RNR_TIMERS_MS", short)
    names = failing([load(file) for file in FILES])
    assert {"rnr-then-receive", "rnr-retry-exceeded"} <= set(names)


# ---------------------------------------------------------------------- what came, in words


@gallery
def test_what_came_is_spelled_as_a_line_that_expects_it(file: Path) -> None:
    scenario = load(file)
    seen: list[OnWire] = []
    play(scenario, seen.append)
    world = World(load(file))
    for entry in seen:
        text = spell(world, entry)
        if "..." in text:  # long data is cut
            continue
        assert differences(world, parse_packet(text[1:], entry.to_right), entry) == [], text
