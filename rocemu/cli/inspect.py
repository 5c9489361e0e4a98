"""``rocemu inspect``."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from rocemu.audit.dissect import Dissector
from rocemu.audit.filter import FilterError, compile_filter
from rocemu.cli import CommandError
from rocemu.cli.inspecting import (
    CaptureOutput,
    ConversationTable,
    LadderOutput,
    Listing,
    Output,
    VectorOutput,
    devour_stdout,
    open_input,
    summary,
)


def command(
    read: Annotated[
        str, typer.Option("--read", "-r", metavar="FILE", help="Capture, or vectors; - is stdin.")
    ],
    display_filter: Annotated[
        str | None, typer.Option("-Y", metavar="FILTER", help="Packets to show.  [infiniband]")
    ] = None,
    tree: Annotated[bool, typer.Option("-V", help="Every field of each packet.")] = False,
    hexdump: Annotated[bool, typer.Option("-x", help="The bytes of each packet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    count: Annotated[
        int | None, typer.Option("-c", metavar="N", min=1, help="Read N frames and no more.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("-q", help="No packets: a table of the conversations.")
    ] = False,
    write: Annotated[
        str | None, typer.Option("-w", metavar="FILE", help="Write the packets as pcapng.")
    ] = None,
    ladder: Annotated[
        bool, typer.Option("--ladder", help="Each conversation as a sequence ladder.")
    ] = False,
    ladder_svg: Annotated[
        str | None, typer.Option("--ladder-svg", metavar="FILE", help="The ladders as SVG.")
    ] = None,
    ladder_mermaid: Annotated[
        str | None, typer.Option("--ladder-mermaid", metavar="FILE", help="As Mermaid text.")
    ] = None,
    vectors: Annotated[
        str | None, typer.Option("--vectors", metavar="FILE", help="The packets as test vectors.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> int:
    """Show what is in a capture: packets, fields, conversations, ladders.

    Reads pcap, pcapng and ERF, also compressed with gzip or zstd, from a file or a pipe; writes
    test vectors and reads them again. FILTER is a subset of Wireshark's language with its field
    names. FILE is - for standard output. Exit code 1 if the file is damaged.

    \b
    Examples:
      rocemu inspect -r capture.pcapng
      rocemu inspect -r capture.pcapng -Y 'infiniband.aeth.syndrome.opcode == 3' -V
      rocemu inspect -r capture.pcapng -q
      rocemu inspect -r capture.pcapng --ladder -Y 'rocemu.conversation == 0'
      tcpdump -i eth0 -w - udp port 4791 | rocemu inspect -r -
    """
    files = [name for name in (write, ladder_svg, ladder_mermaid, vectors) if name]
    on_screen = quiet or ladder or tree or hexdump or as_json
    if files.count("-") > 1 or ("-" in files and on_screen):
        raise typer.BadParameter("only one output can go to standard output", param_hint="-")
    try:
        selects = compile_filter("infiniband" if display_filter is None else display_filter)
    except FilterError as error:
        raise typer.BadParameter(str(error), param_hint="-Y") from None
    _keep_input(read, files)
    live = read == "-" or not Path(read).is_file()
    with ExitStack() as stack:
        reader = stack.enter_context(open_input(read))
        outputs: list[Output] = []
        if tree or hexdump or (as_json and not quiet) or not (files or quiet or ladder):
            outputs.append(Listing(tree=tree, hexdump=hexdump, as_json=as_json, live=live))
        if write:
            outputs.append(CaptureOutput(write, force=force, source=read, live=live))
        if vectors:
            outputs.append(VectorOutput(vectors, force=force, source=read))
        if ladder or ladder_svg or ladder_mermaid:
            outputs.append(LadderOutput(ladder, ladder_svg, ladder_mermaid, force=force))
        if quiet:
            outputs.append(ConversationTable(as_json=as_json))
        for output in outputs:
            stack.callback(output.close)
        dissector = Dissector()
        sentences: list[str] = []
        try:
            with suppress(KeyboardInterrupt):  # of a live capture: what came so far is shown
                for packet in dissector.dissect_all(islice(reader, count)):
                    if selects(packet):
                        for output in outputs:
                            output.add(packet)
            for output in outputs:
                sentences += output.finish()
        except BrokenPipeError:
            devour_stdout()
    for sentence in [*sentences, *summary(dissector, reader, read)]:
        print(sentence, file=sys.stderr)
    return 1 if reader.damage else 0


def _keep_input(read: str, files: list[str]) -> None:
    for name in files:
        if Path(name).exists() and Path(read).exists() and Path(name).samefile(read):
            raise CommandError(f"{name} is the file that is read")
