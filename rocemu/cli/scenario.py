"""``rocemu scenario``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rocemu.capture import EndpointCapture
from rocemu.net import resolve, source_address
from rocemu.scenario import (
    PARTICIPANTS,
    OnWire,
    Report,
    Scenario,
    ScenarioError,
    load,
    play,
    play_live,
)

Player = Callable[[Scenario, Callable[[OnWire], None] | None], Report]


def command(
    action: Annotated[str, typer.Argument(metavar="run", help="Play the files.")],
    words: Annotated[
        list[str],
        typer.Argument(metavar="[HOST] FILE...", help="Scenarios, in TOML; HOST goes with --as."),
    ],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every line of the script, with its time.")
    ] = False,
    capture: Annotated[
        str | None,
        typer.Option(metavar="FILE.pcapng", help="Write what was on the wire; one scenario only."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a scenario.")] = False,
    who: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Play requester or responder against HOST, with real packets in real time.",
        ),
    ] = None,
    bind: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="With --as: address of this host to use.")
    ] = None,
) -> int:
    """Play scenarios in one process, on virtual time, and compare what comes with what is expected.

    The same file gives the same packets every time. docs/scenarios.md has the format, scenarios/ a
    gallery. Exit code 0 when everything came as expected, 1 when something did not, 2 for a file
    that is no scenario.

    \b
    Examples:
      rocemu scenario run scenarios/*.toml
      rocemu scenario run -v scenarios/psn-gap.toml
      rocemu scenario run scenarios/psn-gap.toml --capture psn-gap.pcapng
      rocemu scenario run --as requester --bind 127.0.0.2 127.0.0.1 mine.toml
    """
    if action != "run":
        raise typer.BadParameter(f"{action!r}: 'run' is what can be done", param_hint="run")
    files = [Path(word) for word in (words if who is None else words[1:])]
    if not files:
        raise typer.BadParameter("with --as, HOST and FILE are needed", param_hint="FILE")
    if len(files) > 1 and (capture or who):
        option = "--capture" if capture else "--as"
        raise typer.BadParameter("goes with one scenario only", param_hint=option)
    if who is None and bind is not None:
        raise typer.BadParameter("goes with --as only", param_hint="--bind")
    scenarios = [_load(file) for file in files]
    player = play if who is None else _live(who, words[0], bind)
    bad = 0
    for file, scenario in zip(files, scenarios, strict=True):
        try:
            report = _captured(player, scenario, capture) if capture else player(scenario, None)
        except ScenarioError as error:
            raise typer.BadParameter(f"{file}: {error}", param_hint="FILE") from None
        bad += not report.good
        print(json.dumps(_record(file, report)) if as_json else _text(file, report, verbose))
    if len(files) > 1 and not as_json:
        print(f"{len(files)} scenarios, {f'{bad} with a difference' if bad else 'all as expected'}")
    return 1 if bad else 0


def _live(who: str, host: str, bind: str | None) -> Player:
    """Plays one part against a host; raises NetError when there is no way to it."""
    if who not in PARTICIPANTS:
        allowed = " and ".join(PARTICIPANTS)
        raise typer.BadParameter(f"{who!r}: allowed are {allowed}", param_hint="--as")
    destination = resolve(host)
    source = resolve(bind) if bind else source_address(destination)
    return lambda scenario, on_wire: play_live(scenario, who, source, destination, on_wire)


def _load(file: Path) -> Scenario:
    try:
        return load(file)
    except ScenarioError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="FILE") from None
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None


def _captured(player: Player, scenario: Scenario, path: str) -> Report:
    """Play with everything on the wire written to a file, times counted from 1970."""
    left = scenario.left.name
    file = EndpointCapture.create(path, name=left, comment=scenario.title)
    report = player(scenario, _writer(file))
    file.close()
    if file.error is not None:
        raise file.error
    return report


def _writer(file: EndpointCapture) -> Callable[[OnWire], None]:
    """Packets go out and come in as the participant on the left sees them."""

    def write(entry: OnWire) -> None:
        add = file.sent if entry.to_right else file.received
        add(entry.datagram, entry.flow, 0, round(entry.when * 1e9), entry.comment)

    return write


def _record(file: Path, report: Report) -> dict[str, object]:
    record: dict[str, object] = {
        "file": str(file),
        "title": report.scenario.title,
        "good": report.good,
    }
    if (line := report.difference) is not None:
        record |= {"line": line.step.line if line.step else None, "time": line.when}
        record |= {"expected": line.text, "came": line.came, "also": report.also}
    return record


def _text(file: Path, report: Report, verbose: bool) -> str:
    line = report.difference
    lines = [f"{'NOT' if line else 'ok '} {file}  {report.scenario.title}"]
    if verbose:
        lines += [
            f"    {entry.when * 1e3:12.6f} ms  {'NOT' if entry.came else '   '}  {entry.text}"
            for entry in report.lines
        ]
    if line is not None:
        where = f"script, line {line.step.line}" if line.step else "end of the script"
        lines.append(f"    {where}, at {line.when * 1e3:.6g} ms")
        lines.append(f"      expected  {line.text}")
        lines.append(f"      came      {line.came}")
        lines += [f"      then      {text}" for text in report.also if text != line.came]
    return "\n".join(lines)
