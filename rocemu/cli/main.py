r"""``rocemu COMMAND``: finds the command, runs it, turns errors into one sentence and an exit code.

The contract between this module and a command
----------------------------------------------

* A command is a line in :data:`COMMANDS` and a module ``rocemu/cli/<name>.py`` that exports one
  function called ``command``, with its parameters annotated for Typer (``Annotated[..., typer.
  Option(...)]``).  Its docstring is the help; a paragraph that starts with a line ``\b`` keeps its
  line breaks, which is how examples are written.  The function is synchronous (it calls
  ``asyncio.run`` itself).  Only the module of the command that was typed is imported, so
  ``rocemu --help`` stays quick whatever a command needs.
* It returns the exit code, None for 0.  0: fine; 1: something was found wrong, or what was asked
  for did not come out; 2: bad usage; 130: Ctrl-C, where a command does not end cleanly by itself.
* Bad usage is ``raise typer.BadParameter("what is wrong and what is allowed", param_hint="--mr")``.
  A failure in the world (port taken, peer silent) is ``raise CommandError("...")``.  Both become
  one sentence on standard error.  Any other exception is a bug of ours and shows its traceback,
  plainly; an OSError that nobody caught is told as a sentence.
* Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from rocemu import __version__
from rocemu.cli import CommandError

Commands = Mapping[str, tuple[str, str]]
"""Command name -> module that exports ``command``, one line of help; in the order of the help."""

COMMANDS: Commands = {
    "demo": ("rocemu.cli.demo", "Two daemons, a refused WRITE, and why: the story in a ladder."),
    "responder": ("rocemu.cli.responder", "Expose memory regions and answer whoever connects."),
    "requester": ("rocemu.cli.requester", "Connect and post operations in order."),
    "ctl": ("rocemu.cli.ctl", "Ask or tell a running daemon over its control socket."),
    "send": ("rocemu.cli.send", "Send one crafted packet and print what answers."),
    "inspect": ("rocemu.cli.inspect", "What is in a capture: packets, conversations, ladders."),
    "audit": ("rocemu.cli.audit", "What is wrong in a capture: ICRCs, and the protocol's rules."),
    "replay": ("rocemu.cli.replay", "Play a capture's requests again and compare the answers."),
    "scenario": (
        "rocemu.cli.scenario",
        "Play scripted exchanges and compare with what is expected.",
    ),
}

EXAMPLES = """\b
Examples:
  rocemu demo
  rocemu responder --bind 127.0.0.1 --mr ro:4096:remote_read --mr rw:64K:remote_write,local_write
  rocemu requester --bind 127.0.0.2 127.0.0.1 'write rw+0 "a longer hello"' 'write ro+0 hello'
"""


def main(argv: Sequence[str] | None = None, commands: Commands = COMMANDS) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next(
        (word for word in arguments if not word.startswith("-")), ""
    )  # no option has a value
    if name not in commands and (name or not arguments):
        problem = f"no such command {name!r}" if name else "a command is needed"
        return _refuse("", f"{problem}: one of {', '.join(commands)}", 2)
    try:
        return _app(commands, name)(arguments, prog_name="rocemu", standalone_mode=False) or 0
    except typer.TyperException as error:
        return _refuse(name, error.format_message(), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _refuse(name, "interrupted", 130)
    except CommandError as error:
        return _refuse(name, str(error), 1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _refuse(name, f"{error.strerror or error}{where}", 1)


def _refuse(name: str, sentence: str, code: int) -> int:
    print(f"{f'rocemu {name}'.strip()}: {sentence}", file=sys.stderr)
    return code


def _app(commands: Commands, chosen: str) -> typer.Typer:
    """All commands with their line of help; only the chosen one is more than that."""
    app = typer.Typer(
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=EXAMPLES,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    for name, (module, summary) in commands.items():
        function = importlib.import_module(module).command if name == chosen else _root
        app.command(name, short_help=summary)(function)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"rocemu {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """An RDMA NIC in software: real RoCEv2 on UDP 4791, and why an access was refused."""
