"""``rocemu replay``."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from rocemu.audit.listing import info
from rocemu.cli import CommandError
from rocemu.cli.inspecting import open_input
from rocemu.daemon.replay import Outcome, Pace, ReplayOptions, replay
from rocemu.daemon.replay_answers import Difference
from rocemu.daemon.replay_script import ReplayError, Script, Step, read_scripts
from rocemu.net import resolve, source_address
from rocemu.net.oneshot import OneShot


def command(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The live responder.")],
    read: Annotated[
        str, typer.Option("--read", "-r", metavar="FILE", help="Capture, or vectors; - is stdin.")
    ],
    bind: Annotated[
        str | None,
        typer.Option("--bind", help="Address of this host to use.  [where the route leaves]"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="CM port.  [the captured one, or 18515]"),
    ] = None,
    conversation: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Only this one, by inspect's number.  [all]"),
    ] = None,
    static: Annotated[
        bool,
        typer.Option("--static", help="No connection manager: the captured numbers, or these:"),
    ] = False,
    qpn: Annotated[str | None, typer.Option(metavar="N", help="Our QP number.")] = None,
    remote_qpn: Annotated[
        str | None, typer.Option(metavar="N", help="The responder's QP number.")
    ] = None,
    remote_psn: Annotated[
        str | None, typer.Option(metavar="N", help="The PSN that it expects first.")
    ] = None,
    map_rkey: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="A captured R_Key and the live one; repeatable."),
    ] = None,
    map_va: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OLD=NEW", help="Addresses from OLD on are sent from NEW on; repeatable."
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="UDP payloads as captured; no connection, no mapping.")
    ] = False,
    multiplier: Annotated[
        float, typer.Option("-x", min=0.001, metavar="X", help="X times the captured speed.")
    ] = 1.0,
    pps: Annotated[
        float | None, typer.Option("-p", min=0.001, metavar="N", help="N requests a second.")
    ] = None,
    top_speed: Annotated[bool, typer.Option("-t", help="No pauses.")] = False,
    loops: Annotated[
        int, typer.Option("-l", min=1, metavar="N", help="Play it N times, each connected anew.")
    ] = 1,
    limit: Annotated[
        int | None, typer.Option("-L", min=1, metavar="N", help="Send N requests and no more.")
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0.01, max=3600, help="Seconds that an answer may take.")
    ] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> int:
    """Play the requester side of a capture into a live responder, and compare the answers.

    Captured QPN and PSN become those of a connection of its own; R_Keys and addresses those of the
    regions of the same name that the captured and the live responder advertise. The ICRC is
    computed anew. A request waits for the answers that came before it in the capture, whatever
    the timing. Answers are compared by opcode, syndrome, PSN, MSN and data; acknowledges may be
    coalesced otherwise. Exit code 1 on any difference.

    \b
    Examples:
      rocemu replay -r pcaps/permission.pcapng 127.0.0.1
      rocemu replay -r capture.pcapng 10.0.0.1 -t -l 10
      rocemu replay -r pcaps/psn.pcapng 127.0.0.1 --static --remote-qpn 0x11 --remote-psn 2000
      rocemu replay -r capture.pcapng 10.0.0.1 --map-rkey 0x1234=0x9f00 --map-va 0x7f0000=0x20000
    """
    given = [
        hint
        for hint, is_given in (("-x", multiplier != 1), ("-p", pps), ("-t", top_speed))
        if is_given
    ]
    if len(given) > 1:
        raise typer.BadParameter("only one of -x, -p and -t", param_hint=given[1])
    texts = {"--qpn": qpn, "--remote-qpn": remote_qpn, "--remote-psn": remote_psn}
    for hint, text in texts.items():
        if text is not None and not static:
            raise typer.BadParameter("only with --static", param_hint=hint)
    numbers = {hint: _number(text, hint) for hint, text in texts.items() if text is not None}
    if (static or raw) and loops > 1:
        raise typer.BadParameter("needs a connection of its own for each loop", param_hint="-l")
    if raw and (static or map_rkey or map_va or port):
        raise typer.BadParameter("takes no connection and no mapping", param_hint="--raw")
    options = ReplayOptions(
        port=port,
        static=static,
        qpn=numbers.get("--qpn"),
        remote_qpn=numbers.get("--remote-qpn"),
        remote_psn=numbers.get("--remote-psn"),
        raw=raw,
        rkeys=_pairs(map_rkey or (), 0xFFFFFFFF, "--map-rkey"),
        vas=_pairs(map_va or (), (1 << 64) - 1, "--map-va"),
        pace=Pace(multiplier, pps, top_speed),
        limit=limit,
        patience=wait,
    )
    scripts = _scripts(read, conversation, static)
    if bind is None:
        destination = resolve(host)
        source = source_address(destination)
    else:
        source = resolve(bind)
        destination = resolve(host, socket.AF_INET6 if ":" in source else socket.AF_INET)
    return _run(
        [script for _ in range(loops) for script in scripts], source, destination, options, as_json
    )


def _number(text: str, hint: str) -> int:
    least, most = (0, 0xFFFFFF) if hint == "--remote-psn" else (2, 0xFFFFFE)
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise typer.BadParameter(f"{text!r}: allowed are {least} to {most}", param_hint=hint)
    return number


def _pairs(texts: Iterable[str], most: int, hint: str) -> dict[int, int]:
    found = {}
    for text in texts:
        old, _, new = text.partition("=")
        try:
            numbers = int(old, 0), int(new, 0)
        except ValueError:
            numbers = -1, -1
        if not all(0 <= number <= most for number in numbers):
            raise typer.BadParameter(
                f"{text!r}: the form is OLD=NEW, numbers up to {most:#x}", param_hint=hint
            )
        found[numbers[0]] = numbers[1]
    return found


def _scripts(path: str, conversation: int | None, static: bool) -> list[Script]:
    with open_input(path) as reader:
        try:
            scripts = read_scripts(reader)
        except ReplayError as error:
            raise CommandError(f"{path}: {error}") from None
    known = ", ".join(str(script.conversation.number) for script in islice(scripts, 20))
    if conversation is not None:
        scripts = [s for s in scripts if s.conversation.number == conversation]
        if not scripts:
            what = f"no conversation {conversation} with requests; there are {known}"
            raise typer.BadParameter(what, param_hint="--conversation")
    if static and len(scripts) > 1:
        what = f"the capture has several conversations, {known}: choose one"
        raise typer.BadParameter(what, param_hint="--conversation")
    return scripts


def _run(
    scripts: list[Script], source: str, destination: str, options: ReplayOptions, as_json: bool
) -> int:
    total = Outcome()
    console = Console(stderr=True)
    with ExitStack() as stack:
        progress = stack.enter_context(
            Progress(console=console, transient=True, disable=not console.is_terminal)
        )
        task = progress.add_task("replay", total=sum(len(script.steps) for script in scripts))

        def done(step: Step, difference: Difference | None) -> None:
            progress.advance(task)
            if as_json:
                _print_record(_step_record(step, difference))
            elif difference is not None:
                print(f"packet {difference.number}  {info(step.packet)}")
                for problem in difference.problems:
                    print(f"    {problem}")

        shot = stack.enter_context(OneShot(source, destination))
        for script in scripts:
            try:
                outcome = replay(script, shot, options, done)
            except ReplayError as error:
                raise CommandError(str(error)) from None
            for difference in outcome.differences:
                if difference.number is None:
                    _tell_extra(difference, as_json)
            total.sent += outcome.sent
            total.compared += outcome.compared
            total.coalesced += outcome.coalesced
            total.differences += outcome.differences
    _summary(scripts, total, as_json)
    return 1 if total.differences else 0


def _step_record(step: Step, difference: Difference | None) -> dict[str, Any]:
    return {
        "event": "request" if step.is_request else "answer",
        "number": step.packet.number,
        "info": info(step.packet),
        "differences": list(difference.problems) if difference else [],
    }


def _tell_extra(difference: Difference, as_json: bool) -> None:
    if as_json:
        _print_record({"event": "extra", "differences": list(difference.problems)})
    else:
        print("; ".join(difference.problems))


def _summary(scripts: list[Script], total: Outcome, as_json: bool) -> None:
    left_out = sum(script.left_out for script in scripts)
    if as_json:
        _print_record(
            {
                "event": "summary",
                "conversations": len(scripts),
                "requests": total.sent,
                "answers": total.compared,
                "coalesced": total.coalesced,
                "left_out": left_out,
                "differences": len(total.differences),
            }
        )
        return
    said = [f"{total.sent} requests sent", f"{total.compared} answers compared"]
    if total.coalesced:
        said.append(f"{total.coalesced} acknowledges coalesced otherwise")
    if left_out:
        said.append(f"{left_out} packets left out")
    print(f"{', '.join(said)}: {len(total.differences) or 'no'} differences", file=sys.stderr)


def _print_record(record: dict[str, Any]) -> None:
    print(json.dumps(record, ensure_ascii=False), flush=True)
