"""``rocemu responder``."""

from __future__ import annotations

from typing import Annotated

import typer

from rocemu.cli import options as o
from rocemu.daemon.config import ResponderConfig
from rocemu.daemon.responder import Responder


def command(
    config: o.Config = None,
    bind: o.Bind = None,
    port: o.Port = None,
    mr: o.Regions = None,
    other_pd: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Put this region into another protection domain than the queue pairs.  May be "
            "repeated.",
        ),
    ] = None,
    qp_access: o.QpAccess = None,
    recv: Annotated[
        str | None,
        typer.Option(
            metavar="N[:SIZE]",
            help="Receives kept posted on each connection; 0 draws RNR NAKs.  [4:4096]",
        ),
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
    seed: o.Seed = None,
    fault: o.Fault = None,
    static: o.Static = None,
    remote: Annotated[
        str | None, typer.Option(metavar="HOST", help="The peer, in static mode.")
    ] = None,
    qpn: o.Qpn = None,
    psn: o.Psn = None,
    remote_qpn: o.RemoteQpn = None,
    remote_psn: o.RemotePsn = None,
) -> int:
    """Expose memory regions and answer whoever connects, until SIGTERM or Ctrl-C.

    Access flags: local_write, remote_write, remote_read, remote_atomic, mw_bind, zero_based,
    none; remote_write and remote_atomic need local_write.

    \b
    Examples:
      rocemu responder --mr ro:4096:remote_read --mr rw:64K:local_write,remote_write,remote_read
      rocemu responder --bind 10.0.0.1 --mr data:1M:remote_read:FILE --capture responder.pcapng
      rocemu responder --static --remote 127.0.0.2 --qpn 0x11 --psn 1000 --remote-qpn 0x12 \\
          --remote-psn 2000 --mr rw:4096:local_write,remote_write@0x10000/0x1234
    """
    given = {name: value for name, value in locals().items() if name != "config"}
    return o.run_daemon(Responder, ResponderConfig, config, given)
