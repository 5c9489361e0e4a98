"""``rocemu demo``."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rocemu.audit import Arrow, Ladder, Look, Note, describe_packet
from rocemu.cli import CommandError
from rocemu.daemon.story import CAUSES, Moment, Story

_ALL = [*CAUSES, "lkey"]


def command(
    cause: Annotated[
        str, typer.Argument(metavar="[CAUSE]", help=f"Why it is refused: {', '.join(_ALL)}.")
    ] = "permission",
    capture: Annotated[
        Path, typer.Option(metavar="FILE.pcapng", help="Where the responder's capture goes.")
    ] = Path("rocemu-demo.pcapng"),
    step: Annotated[bool, typer.Option("--step", help="Wait for Enter before each step.")] = False,
) -> int:
    """Two daemons, a refused WRITE, and what each side learns of it, as a ladder.

    Starts a responder on 127.0.0.1 and a requester on 127.0.0.2 as two processes, without root.
    Exit code 1 if any step came out otherwise than it must.

    \b
    Examples:
      rocemu demo
      rocemu demo bounds --capture bounds.pcapng
      rocemu demo lkey --step
    """
    if cause not in _ALL:
        raise typer.BadParameter(f"{cause!r}: allowed are {', '.join(_ALL)}", param_hint="CAUSE")
    with tempfile.TemporaryDirectory(prefix="rocemu-") as folder:
        return asyncio.run(_show(Story(cause, capture.absolute(), Path(folder)), step, capture))


async def _show(story: Story, step_by_step: bool, capture: Path) -> int:
    console = Console(highlight=False, soft_wrap=True)
    ladder = Ladder(min(console.width, 110) if console.is_terminal else 100)
    moments: list[Moment] = []
    good = True

    def tell() -> None:
        fresh = story.news()
        moments.extend(fresh)
        for moment in fresh:
            entry = _entry(moment, story)
            if entry is not None:
                console.print(ladder.row(entry))

    try:
        await story.start()
        console.print(ladder.header(" requester 127.0.0.2", "responder 127.0.0.1 "))
        tell()
        for number, act in enumerate(story.acts()):
            if number:
                console.print("\n a new connection, for a QP in ERR does nothing more")
                await story.next_act()
                tell()
            for step in act:
                console.print(f"\n {step.title}: {story.words(step)}", style="bold")
                if step_by_step:
                    await asyncio.to_thread(_wait_for_enter)
                completion = await story.play(step)
                tell()
                if completion["status"] != step.status:
                    good = False
                    console.print(f" expected {step.status}", style="bold red")
    finally:
        await story.stop()
    tell()
    console.print(_learned(moments))
    for check in story.checks(moments):
        good &= check.good
        mark, style = ("ok ", "green") if check.good else ("NOT", "bold red")
        console.print(Text.assemble((f" {mark}", style), f" {check.text}"))
    console.print(f"\n capture: {capture}")
    return 0 if good else 1


def _wait_for_enter() -> None:
    try:
        input(" Enter to go on ")
    except EOFError:
        raise CommandError("standard input ended before the story did") from None


def _entry(moment: Moment, story: Story) -> Arrow | Note | None:
    """What a ladder shows of a moment; None for what only fills it."""
    if moment.packet is not None:
        label = describe_packet(moment.packet, story.names)
        return Arrow(moment.from_requester, label, Look.NAK if "NAK" in label else Look.REQUEST)
    right, record = not moment.from_requester, moment.record
    match record["event"]:
        case "completion":
            status = record["status"]
            label = f"wr_id {record['wr_id']} {record['opcode']}: {status}"
            return Note(right, label, bad=status != "IBV_WC_SUCCESS")
        case "violation":
            return Note(right, f"violation: {record['detail']}", bad=True)
        case "async":
            return Note(right, record["type"], bad=True)
        case "qp_state" if record["to"] in ("IBV_QPS_RTS", "IBV_QPS_ERR"):
            label = f"QP {record['qp_num']:#x}: {record['from']} -> {record['to']}"
            return Note(right, label, bad=record["to"] == "IBV_QPS_ERR")
        case "drop":
            return Note(right, f"dropped: {record['detail']}", bad=True)
    return None


def _learned(moments: list[Moment]) -> str:
    """What each side knows of the refusals."""
    lines = [""]
    for moment in moments:
        if moment.record.get("event") == "violation":
            side = "requester" if moment.from_requester else "responder"
            lines.append(f" the {side} knows why:  {moment.record['detail']}")
            if side == "responder":
                lines.append(" the requester knows:      IBV_WC_REM_ACCESS_ERR, and no reason")
    return "\n".join([*lines, ""])
