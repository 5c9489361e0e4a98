"""``rocemu ctl``."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from rocemu.cli import CommandError
from rocemu.daemon.control import ControlError, ask


def command(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The daemon's control socket.")],
    words: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGUMENT]...")],
    json: Annotated[bool, typer.Option("--json", "-j", help="One JSON object a line.")] = False,
) -> int:
    """Ask or tell a running daemon over its control socket.

    \b
    Commands:
      state               queue pairs and regions
      counters            packets, drops by reason, key cache
      memory PLACE LENGTH what a region holds, NAME+OFFSET
      stop                end the daemon
      register SPEC       responder: a new region, NAME:SIZE:FLAGS[:FILE]
      deregister NAME     responder: withdraw a region
      post OPERATION      requester: one operation, and its completion
      reconnect           requester: a new connection in place of one in ERR

    \b
    Examples:
      rocemu ctl /tmp/responder.sock state
      rocemu ctl /tmp/responder.sock deregister rw
      rocemu ctl /tmp/requester.sock post 'write rw+0 "a longer hello"'
    """
    try:
        for record in ask(path, words):
            print(json_module.dumps(record) if json else _line(record))
    except ControlError as error:
        raise CommandError(str(error)) from None
    return 0


_HEX = ("qp_num", "remote_qp_num", "va", "rkey", "lkey")


def _line(record: dict[str, Any]) -> str:
    """As ``rdma resource show`` prints: names and values in turn."""
    words = [str(record.pop("object"))]
    for name, value in record.items():
        words.append(f"{name} {value:#x}" if name in _HEX else f"{name} {value}")
    return "  ".join(words)
