"""``rocemu send``."""

from __future__ import annotations

import errno
import json as json_module
import socket
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, TextIO

import typer

from rocemu.capture import EndpointCapture
from rocemu.cli import CommandError
from rocemu.cli.decoding import packet_line, packet_record
from rocemu.net import NetError, resolve
from rocemu.net.oneshot import Arrival, OneShot, source_for
from rocemu.wire import BTH, ICRC_SIZE, Flow, IcrcMatch, verify

#: Fields below the BTH, by name: smallest and largest value.
_NETWORK = {"tos": (0, 255), "ttl": (1, 255), "sport": (1, 65535)}
#: Most bytes of a UDP payload over IPv4.
_LARGEST = 65507


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Name or address to send to.")],
    opcode: Annotated[
        str | None,
        typer.Argument(metavar="[OPCODE]", help="By name or number.", show_default=False),
    ] = None,
    field: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", help="See below.")
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option("--bind", help="Address of this host to use.  [where the route leaves]"),
    ] = None,
    bad_icrc: Annotated[
        bool, typer.Option("--bad-icrc", help="Send an ICRC that is wrong for every IP ID.")
    ] = False,
    cut: Annotated[
        int, typer.Option(min=0, help="Leave off the last CUT bytes in front of the ICRC.")
    ] = 0,
    raw: Annotated[
        str | None,
        typer.Option(
            "--hex", metavar="BYTES", help="The whole UDP payload as it is, no ICRC added."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, help="Send it COUNT times, unchanged.")
    ] = 1,
    wait: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds to wait for answers; 0: do not listen.")
    ] = 1.0,
    answers: Annotated[
        int | None, typer.Option(min=1, help="Do not wait on after so many.  [any number]")
    ] = None,
    capture: Annotated[
        str | None,
        typer.Option("--write", "-w", metavar="FILE.pcapng", help="Write what is sent and comes."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Print the UDP payload in hex, send nothing.")
    ] = False,
) -> int:
    """Send one crafted packet and print what answers.

    OPCODE is a name, 'RC RDMA WRITE Only', rdma_write_only (RC where no transport is named),
    'UD SEND Only', CNP, or any number to 0xff, reserved ones too.  A FIELD that is not given is
    right: pad, length, ICRC; ackreq is 1 on requests of RC, RD and XRC.

    \b
    Fields:
      bth           dest_qp psn ackreq se migreq pad tver pkey fecn becn resv6 resv7 padding icrc
      reth          va rkey length
      aeth          syndrome msn
      immdt         immediate
      ieth          rkey
      atomiceth     va rkey swap_or_add compare
      atomicacketh  original_data
      deth          qkey source_qp reserved
      xrceth        srqn reserved
      rdeth         ee_context reserved
      feth          placement selectivity reserved
      cnppad        reserved
      IP and UDP    tos ttl sport
      payload       text, or hex:0011ff

    bth.psn is the long form, needed where two headers have a field of that name.  A number is
    decimal or 0x; syndrome also takes 'NAK Remote Access Error'; pad, tver and icrc may be wrong.

    Exit code 0 when an answer came or none was awaited, 1 when none came.  Answers come to UDP
    4791 of --bind.

    \b
    Examples:
      rocemu send 127.0.0.1 --bind 127.0.0.2 rdma_write_only dest_qp=0x11 psn=1000 \\
          va=0x10000 rkey=0x1234 payload=hello
      rocemu send 10.0.0.1 'RC SEND Only' dest_qp=0x11 psn=7 payload=hex:00ff --bad-icrc
      rocemu send 10.0.0.1 0x18 dest_qp=0x11 psn=7 tver=1 pad=3
      rocemu send 10.0.0.1 CNP dest_qp=0x11 tos=0xc0 --wait 0
      rocemu send 10.0.0.1 --hex 0a00ffff --wait 0 -w probe.pcapng
    """
    words = [word for word in (opcode, *(field or [])) if word is not None]
    values, network = _split(words)
    make = _raw(raw, values) if raw is not None else _crafted(values, cut, bad_icrc)
    bind, target = _ends(bind, target)
    stream = sys.stderr if capture == "-" else sys.stdout
    file = EndpointCapture.create(capture, name=f"rocemu send {bind}") if capture else None
    try:
        if dry_run:
            flow = Flow(bind, target, network.pop("sport", 0xC000), **network)
            datagram = make(flow)
            print(datagram.hex(), file=stream)
            if file is not None:
                file.sent(datagram, flow, 0, time.time_ns())
            return 0
        show = _Printer(stream, json, file)
        with _open(bind, target, network, listen=wait > 0) as shot:
            return _exchange(shot, make(shot.flow), count, wait, answers, show)
    finally:
        if file is not None:
            file.close()


Make = Callable[[Flow], bytes]
"""Gives the UDP payload for a flow, whose addresses and ports the ICRC covers."""


def _split(words: list[str]) -> tuple[dict[str, str], dict[str, int]]:
    """Opcode (under the name ``""``) and fields as texts; and the fields below the BTH."""
    values: dict[str, str] = {}
    network: dict[str, int] = {}
    for index, word in enumerate(words):
        name, equals, text = word.partition("=")
        name = name.lower().strip() if equals else ""
        if not equals and index > 0:
            raise typer.BadParameter(f"{word!r}: the form is FIELD=VALUE", param_hint="FIELD")
        if name in values or name in network:
            raise typer.BadParameter(f"{name} is given twice", param_hint="FIELD")
        if name in _NETWORK:
            network[name] = _number(name, text)
        else:
            values[name] = text if equals else word
    return values, network


def _number(name: str, text: str) -> int:
    least, most = _NETWORK[name]
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise typer.BadParameter(
            f"{name}={text}: allowed are {least} to {most}", param_hint="FIELD"
        )
    return number


def _raw(text: str, values: dict[str, str]) -> Make:
    if values:
        raise typer.BadParameter("an opcode and fields have no place in it", param_hint="--hex")
    try:
        datagram = bytes.fromhex(text)
    except ValueError:
        raise typer.BadParameter(
            "pairs of hexadecimal digits are needed", param_hint="--hex"
        ) from None
    _check_size(len(datagram), "--hex")
    return lambda flow: datagram


def _check_size(size: int, hint: str) -> None:
    if size > _LARGEST:
        raise typer.BadParameter(
            f"{size} bytes are more than a datagram can carry, {_LARGEST}", param_hint=hint
        )


def _crafted(values: dict[str, str], cut: int, bad_icrc: bool) -> Make:
    from rocemu.cli.crafting import CraftError, add_icrc, craft, find_opcode  # Scapy: 0.5 s

    name = values.pop("", None)
    if name is None:
        raise typer.BadParameter(
            "one is needed, as in 'RC SEND Only' or 0x04; or --hex BYTES", param_hint="OPCODE"
        )
    try:
        opcode = find_opcode(name)
    except CraftError as error:
        raise typer.BadParameter(str(error), param_hint="OPCODE") from None
    try:
        body, icrc = craft(opcode, values)
    except CraftError as error:
        raise typer.BadParameter(str(error), param_hint="FIELD") from None
    _check_size(len(body) + ICRC_SIZE, "FIELD")
    if cut > (most := len(body) - BTH.SIZE):
        raise typer.BadParameter(
            f"only {most} bytes follow the BTH; --hex sends less than that", param_hint="--cut"
        )
    body = body[: len(body) - cut]
    if bad_icrc and icrc is not None:
        raise typer.BadParameter("icrc=VALUE names one already", param_hint="--bad-icrc")
    return lambda flow: add_icrc(body, flow, icrc, bad_icrc)


def _ends(bind: str | None, target: str) -> tuple[str, str]:
    """Our address and the target's, of one family."""
    if bind is None:
        destination = resolve(target)
        return source_for(destination), destination
    source = resolve(bind)
    return source, resolve(target, socket.AF_INET6 if ":" in source else socket.AF_INET)


def _open(source: str, destination: str, network: dict[str, int], *, listen: bool) -> OneShot:
    port, tos, ttl = network.get("sport"), network.get("tos", 0), network.get("ttl", 64)
    try:
        return OneShot(source, destination, port=port, tos=tos, ttl=ttl, listen=listen)
    except NetError as error:
        if isinstance(cause := error.__cause__, OSError) and cause.errno == errno.EADDRINUSE:
            hint = "--bind takes another address, --wait 0 does not listen"
            raise CommandError(f"{error}; {hint}") from None
        raise


class _Printer:
    """Prints packets, and writes them to the capture."""

    def __init__(self, stream: TextIO, as_json: bool, file: EndpointCapture | None) -> None:
        self._stream = stream
        self._as_json = as_json
        self._file = file

    def sent(self, datagram: bytes, flow: Flow) -> None:
        if self._file is not None:
            self._file.sent(datagram, flow, 0, time.time_ns())
        match = IcrcMatch.BAD
        if len(datagram) >= BTH.SIZE + ICRC_SIZE:
            match, _ = verify(datagram, flow, 0)
        self._print("sent", packet_record(datagram, flow, match, 0))

    def came(self, event: str, arrival: Arrival, seconds: float) -> None:
        if self._file is not None:
            self._file.received(arrival.datagram, arrival.flow, arrival.ip_id, time.time_ns())
        record = packet_record(arrival.datagram, arrival.flow, arrival.match, arrival.ip_id)
        self._print(event, record | {"seconds": round(seconds, 6)})

    def _print(self, event: str, record: dict[str, Any]) -> None:
        if self._as_json:
            line = json_module.dumps({"event": event} | record)
        else:
            line = f"{event:<6}  {packet_line(record)}"
            if "seconds" in record:
                line += f"  {record['seconds'] * 1000:.2f} ms"
        print(line, file=self._stream, flush=True)


def _exchange(
    shot: OneShot, datagram: bytes, count: int, wait: float, wanted: int | None, show: _Printer
) -> int:
    """Send, then show what comes; gives the exit code."""
    start = time.monotonic()
    for _ in range(count):
        shot.send(datagram)
        show.sent(datagram, shot.flow)
    if wait == 0:
        return 0
    answers = 0
    for arrival in shot.arrivals(wait):
        is_answer = arrival.flow.source == shot.flow.destination
        show.came("answer" if is_answer else "other", arrival, time.monotonic() - start)
        answers += is_answer
        if answers == wanted:
            break
    if not answers:
        raise CommandError(f"no answer from {shot.flow.destination} in {wait:g} s")
    return 0
