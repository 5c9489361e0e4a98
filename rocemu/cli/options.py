"""Options that the responder and the requester share, and how they become a configuration."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rocemu.cli import CommandError
from rocemu.daemon.base import Daemon
from rocemu.daemon.config import ConfigError, DaemonConfig
from rocemu.daemon.control import ControlError
from rocemu.daemon.output import Reporter
from rocemu.protection import RegistrationError
from rocemu.transport import QPError

Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file; its keys are these options' names.")
]
Bind = Annotated[
    str | None, typer.Option("--bind", help="Address of this host to use; part of every ICRC.")
]
Port = Annotated[
    str | None,
    typer.Option("--port", "-p", metavar="N", help="Port of the RDMA CM service.  [18515]"),
]
Regions = Annotated[
    list[str] | None,
    typer.Option(
        "--mr",
        metavar="NAME:SIZE:FLAGS[:FILE][@VA[/RKEY]]",
        help="A memory region, as in rw:64K:local_write,remote_write; FILE is its first content. "
        "May be repeated.",
    ),
]
Icrc = Annotated[
    str | None,
    typer.Option(help="What to do about a wrong ICRC: verify, count or ignore.  [verify]"),
]
Capture = Annotated[
    str | None,
    typer.Option(metavar="FILE.pcapng", help="Write what is sent and received; - is stdout."),
]
Control = Annotated[str | None, typer.Option(metavar="PATH", help="Unix socket for 'rocemu ctl'.")]
AsJson = Annotated[bool | None, typer.Option("--json", help="One JSON object a line.")]
Seed = Annotated[
    str | None, typer.Option(metavar="N", help="Make QPNs, PSNs, IDs and chances repeat.")
]
Fault = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RULE",
        help="A fault on purpose, as in 'drop tx psn=+5 once'; docs/daemons.md has the language.  "
        "May be repeated.",
    ),
]
Static = Annotated[
    bool | None,
    typer.Option("--static", help="No connection manager: the numbers below are the connection."),
]
Qpn = Annotated[str | None, typer.Option(metavar="N", help="Our QP number.")]
Psn = Annotated[str | None, typer.Option(metavar="N", help="Our first PSN.")]
RemoteQpn = Annotated[str | None, typer.Option(metavar="N", help="The peer's QP number.")]
RemotePsn = Annotated[str | None, typer.Option(metavar="N", help="The peer's first PSN.")]
Mtu = Annotated[
    str | None,
    typer.Option(
        "--mtu", "-m", metavar="BYTES", help="Path MTU, 256 to 4096.  [the largest that fits]"
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", "-u", metavar="N", help="ACK timeout, 4.096 us * 2^N.  [16]"),
]
RetryCount = Annotated[
    str | None, typer.Option(metavar="N", help="Transport retries, 0 to 7.  [7]")
]
RnrRetry = Annotated[
    str | None, typer.Option(metavar="N", help="RNR retries, 0 to 7; 7 is for ever.  [6]")
]
RnrTimer = Annotated[
    str | None,
    typer.Option(metavar="N", help="RNR timer code that our NAKs carry, 0 to 31.  [12: 0.64 ms]"),
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", help="Behave as spec or as soft-roce where they differ.  [spec]"),
]
Tos = Annotated[
    str | None, typer.Option(metavar="N", help="IP TOS (DSCP and ECN) of what is sent.  [0]")
]
Ttl = Annotated[str | None, typer.Option(metavar="N", help="IP TTL of what is sent.  [64]")]
MigReq = Annotated[
    bool | None, typer.Option("--migreq", help="Send MigReq 1, as adapters do.  [0]")
]
Pkey = Annotated[str | None, typer.Option(metavar="N", help="Our P_Key.  [0xffff]")]
QpAccess = Annotated[
    str | None,
    typer.Option(metavar="FLAGS", help="What the QP lets the peer do.  [all: the MR decides]"),
]


def run_daemon(
    daemon: Callable[[Any, Reporter], Daemon],
    config_class: type[DaemonConfig],
    file: Path | None,
    options: Mapping[str, Any],
) -> int:
    """Start a daemon from its options and run it to its end; gives the exit code."""
    try:
        config = config_class.build(file, options)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None
    to_stdout = config.capture == "-"
    report = Reporter(sys.stderr if to_stdout else sys.stdout, as_json=config.json)

    async def run() -> int:
        return await daemon(config, report).run()

    try:
        return asyncio.run(run())
    except RegistrationError as error:
        raise typer.BadParameter(str(error), param_hint="--mr") from None
    except (ControlError, QPError) as error:
        raise CommandError(str(error)) from None
