"""``rocemu scenario``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rocemu.capture import EndpointCapture
from rocemu.scenario import OnWire, Report, Scenario, ScenarioError, load, play


def command(
    action: Annotated[str, typer.Argument(metavar="run", help="Play the files.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Scenarios, in TOML.")],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every line of the script, with its time.")
    ] = False,
    capture: Annotated[
        str | None,
        typer.Option(metavar="FILE.pcapng", help="Write what was on the wire; one scenario only."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a scenario.")] = False,
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
    """
    if action != "run":
        raise typer.BadParameter(f"{action!r}: 'run' is what can be done", param_hint="run")
    if capture is not None and len(files) > 1:
        raise typer.BadParameter("one scenario only can be captured", param_hint="--capture")
    scenarios = [_load(file) for file in files]
    bad = 0
    for file, scenario in zip(files, scenarios, strict=True):
        report = play(scenario) if capture is None else _captured(scenario, capture)
        bad += not report.good
        if as_json:
            print(json.dumps(_record(file, report)))
        else:
            print(_text(file, report, verbose))
    if len(files) > 1 and not as_json:
        print(f"{len(files)} scenarios, {f'{bad} with a difference' if bad else 'all as expected'}")
    return 1 if bad else 0


def _load(file: Path) -> Scenario:
    try:
        return load(file)
    except ScenarioError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="FILE") from None
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None


def _captured(scenario: Scenario, path: str) -> Report:
    """Play with everything on the wire written to a file, times counted from 1970."""
    left = scenario.left.name
    file = EndpointCapture.create(path, name=left, comment=scenario.title)
    report = play(scenario, _writer(file))
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
