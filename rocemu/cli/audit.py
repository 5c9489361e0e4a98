"""``rocemu audit``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from rocemu.capture import CaptureReader, decode_frame
from rocemu.cli import CommandError
from rocemu.cli.inspecting import devour_stdout, open_input
from rocemu.wire import pack_address

_MOST_ADDRESSES = 4096  # that a packet's own may have been changed from

# numpy starts a pool of threads for linear algebra, which has no work here
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def command(
    read: Annotated[
        str, typer.Option("--read", "-r", metavar="FILE", help="Capture; - is standard input.")
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Warnings, too, are exit code 1.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a finding, and one summary.")
    ] = False,
    explain_icrc: Annotated[
        int | None,
        typer.Option(
            "--explain-icrc", metavar="N", min=1, help="How the ICRC of packet N is made up."
        ),
    ] = None,
) -> int:
    """Verify the ICRC of every packet of a capture, and hold it against the protocol's rules.

    Each finding has a code, a severity, the packets, one sentence and the clause; docs/audit.md
    has the table. Exit code 0 when there is no error, 1 when there is (--strict: or a warning),
    and for a damaged file. With --explain-icrc: the bytes that go into the CRC of one packet, and
    if its ICRC is wrong, which usual mistake gives exactly that; exit code 1 when it is wrong.

    \b
    Examples:
      rocemu audit -r capture.pcapng
      rocemu audit -r capture.pcapng --json | jq 'select(.severity == "error")'
      rocemu audit -r capture.pcapng --explain-icrc 17
      tcpdump -i eth0 -w - udp port 4791 | rocemu audit -r -
    """
    with open_input(read) as reader:
        try:
            if explain_icrc is not None:
                return _explain(reader, explain_icrc, as_json)
            return _audit(reader, read, strict, as_json)
        except BrokenPipeError:
            devour_stdout()
            return 1


def _audit(reader: CaptureReader, path: str, strict: bool, as_json: bool) -> int:
    from rocemu.audit.auditor import Audit
    from rocemu.cli.auditing import JsonFindings, TextFindings

    output = JsonFindings() if as_json else TextFindings()
    audit = Audit(output.add)
    with suppress(KeyboardInterrupt):  # of a live capture: what came so far counts
        audit.run(reader, processes=min(2, os.cpu_count() or 1))
    output.finish(audit.summary)
    sys.stdout.flush()
    if reader.damage:
        print(f"rocemu audit: {path}: {reader.damage}", file=sys.stderr)
    failed = audit.summary.errors or reader.damage or (strict and audit.summary.warnings)
    return 1 if failed else 0


def _explain(reader: CaptureReader, number: int, as_json: bool) -> int:
    from rocemu.audit.icrc_explain import ExplainError, explain, take_apart
    from rocemu.cli.auditing import explanation_json, explanation_text

    addresses: set[bytes] = set()
    packet = None
    for count, packet in enumerate(reader, 1):
        frame = decode_frame(packet.linktype, packet.data)
        if frame is not None and len(addresses) < _MOST_ADDRESSES:
            addresses |= {pack_address(frame.flow.source), pack_address(frame.flow.destination)}
        if count == number:
            break
    if packet is None or reader.packets < number:
        raise CommandError(f"there is no packet {number}: the capture has {reader.packets}")
    try:
        explanation = explain(*take_apart(packet, addresses))
    except ExplainError as error:
        raise CommandError(f"packet {number}: {error}") from None
    if as_json:
        print(explanation_json(number, explanation))
    else:
        for line in explanation_text(number, explanation):
            print(line)
    sys.stdout.flush()
    return 0 if explanation.right else 1
