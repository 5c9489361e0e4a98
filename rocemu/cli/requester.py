"""``rocemu requester``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rocemu.cli import options as o
from rocemu.daemon.config import RequesterConfig
from rocemu.daemon.requester import Requester


def command(
    remote: Annotated[
        str | None, typer.Argument(metavar="HOST", help="The responder's name or address.")
    ] = None,
    operations: Annotated[
        list[str] | None, typer.Argument(metavar="[OPERATION]...", help="See below.")
    ] = None,
    config: o.Config = None,
    bind: o.Bind = None,
    port: o.Port = None,
    mr: o.Regions = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", help="More operations, one a line; - is standard input."),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS,...",
            help="Exit 0 exactly when the completions are these, as in SUCCESS,REM_ACCESS_ERR.",
        ),
    ] = None,
    tx_depth: Annotated[
        str | None,
        typer.Option(
            "--tx-depth",
            "-t",
            metavar="N",
            help="Operations posted at once; 1 waits for each.  [1]",
        ),
    ] = None,
    daemon: Annotated[
        bool | None,
        typer.Option("--daemon", help="Stay, and take operations on the control socket."),
    ] = None,
    capture: o.Capture = None,
    control: o.Control = None,
    json: o.AsJson = None,
    icrc: o.Icrc = None,
    mtu: o.Mtu = None,
    timeout: o.Timeout = None,
    retry_count: o.RetryCount = None,
    rnr_retry: o.RnrRetry = None,
    rnr_timer: o.RnrTimer = None,
    profile: o.ProfileName = None,
    tos: o.Tos = None,
    ttl: o.Ttl = None,
    migreq: o.MigReq = None,
    pkey: o.Pkey = None,
    qp_access: o.QpAccess = None,
    seed: o.Seed = None,
    fault: o.Fault = None,
    static: o.Static = None,
    qpn: o.Qpn = None,
    psn: o.Psn = None,
    remote_qpn: o.RemoteQpn = None,
    remote_psn: o.RemotePsn = None,
) -> int:
    """Connect, post operations in order, print each completion, disconnect.

    \b
    Operations:
      write TARGET DATA              RDMA WRITE; with imm=N an immediate goes along
      read TARGET LENGTH [>LOCAL]    RDMA READ
      send DATA                      SEND; imm=N likewise, inv=RKEY with Invalidate
      fetch-add TARGET ADDEND [>LOCAL]
      cmp-swap TARGET COMPARE SWAP [>LOCAL]
      atomic-write TARGET DATA       8 bytes
      flush TARGET LENGTH            plt=1 global, 2 persistent, 3 both; sel=1 the whole region
    \b
      TARGET  NAME+OFFSET of a region that the responder advertised, or @VA/RKEY
      DATA    word, "quoted text", hex:0011ff, or <LOCAL:LENGTH
      LOCAL   NAME+OFFSET of a region of our own (--mr)
      options behind: imm=N  lkey=N (a wrong one)  fence  solicited  inline  unsignaled

    Exit code 0 when every completion was IBV_WC_SUCCESS (or as --expect says), 1 when not.

    \b
    Examples:
      rocemu requester --bind 127.0.0.2 127.0.0.1 'write rw+0 "a longer hello"' 'read rw+0 14'
      rocemu requester --bind 127.0.0.2 127.0.0.1 'write ro+0 hello' --expect REM_ACCESS_ERR
      rocemu requester --bind 127.0.0.2 127.0.0.1 'write @0x1000/0xdeadbeef hello'
      rocemu requester --bind 127.0.0.2 127.0.0.1 --mr src:4096:none 'write rw+0 <src+0:64'
    """
    given = {name: v for name, v in locals().items() if name not in ("config", "file")}
    given["operations"] = [*(operations or []), *_lines(file)] or None
    return o.run_daemon(Requester, RequesterConfig, config, given)


def _lines(file: str | None) -> list[str]:
    """The operations of a file; blank lines and comments are passed over."""
    if file is None:
        return []
    try:
        if file == "-":
            lines = sys.stdin.readlines()
        else:
            with open(file, encoding="utf-8") as stream:
                lines = stream.readlines()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--file") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file}: not UTF-8 text", param_hint="--file") from None
    return [line.strip() for line in lines if line.strip()]
