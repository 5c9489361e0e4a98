"""The front door: help, version, exit codes, and that nothing heavy is loaded to show help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rocemu import __version__
from rocemu.cli.main import COMMANDS, Commands, main

TOY = '''
from typing import Annotated

import typer

from rocemu.cli import CommandError


def command(
    what: str,
    mtu: Annotated[int, typer.Option("--mtu", min=256, help="Path MTU.")] = 1024,
) -> int | None:
    """Do what is named.

    \b
    Examples:
      rocemu toy seven
      rocemu toy nothing
    """
    match what:
        case "nothing":
            return None
        case "seven":
            return 7
        case "fail":
            raise CommandError("127.0.0.1:4791 does not answer.")
        case "os":
            raise FileNotFoundError(2, "No such file or directory", "mr.bin")
        case "bug":
            raise KeyError("a bug")
        case "interrupt":
            raise KeyboardInterrupt
        case "exit":
            raise typer.Exit(1)
    raise typer.BadParameter(f"{what!r} is not one of ours", param_hint="--mr")
'''


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Two commands: one to run, one whose import would break."""
    (tmp_path / "rocemu_toy.py").write_text(TOY)
    (tmp_path / "rocemu_broken.py").write_text("raise AssertionError('imported for nothing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "rocemu_toy", raising=False)
    return {
        "toy": ("rocemu_toy", "Plays with exit codes."),
        "broken": ("rocemu_broken", "Must never be imported."),
    }


def test_help_lists_every_command_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, (_, summary) in COMMANDS.items():
        assert f"{name:<9}  {summary}" in out
    assert "\n    rocemu demo\n" in out, "examples keep their lines"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rocemu {__version__}\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nothing"], 0),
        (["--mtu", "256", "nothing"], 0),
        (["seven"], 7),
        (["exit"], 1),
        (["interrupt"], 130),
    ],
)
def test_exit_code_is_what_the_command_returns(toys: Commands, words: list[str], code: int) -> None:
    assert main(["toy", *words], toys) == code


@pytest.mark.parametrize(
    ("argv", "code", "sentence"),
    [
        (["toy", "fail"], 1, "rocemu toy: 127.0.0.1:4791 does not answer."),
        (["toy", "os"], 1, "rocemu toy: No such file or directory: mr.bin"),
        (["toy", "other"], 2, "rocemu toy: Invalid value for --mr: 'other' is not one of ours"),
        (["toy"], 2, "rocemu toy: Missing argument"),
        (["toy", "--nope", "x"], 2, "rocemu toy: No such option: --nope"),
        (["toy", "--mtu", "12", "x"], 2, "rocemu toy: Invalid value for '--mtu': "),
        (["play"], 2, "rocemu: no such command 'play': one of toy, broken"),
        (["--loud"], 2, "rocemu: No such option: --loud"),
        ([], 2, "rocemu: a command is needed: one of toy, broken"),
    ],
)
def test_mistakes_are_one_sentence_on_stderr(
    toys: Commands, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, sentence: str
) -> None:
    assert main(argv, toys) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(sentence)
    assert shown.err.count("\n") == 1


def test_a_bug_is_not_hidden(toys: Commands) -> None:
    with pytest.raises(KeyError, match="a bug"):
        main(["toy", "bug"], toys)


def test_the_docstring_is_the_help(toys: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "--help"], toys) == 0
    out = capsys.readouterr().out
    assert "Do what is named." in out
    assert "\n    rocemu toy seven\n    rocemu toy nothing\n" in out
    assert "--mtu" in out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import json, sys; from rocemu.cli.main import main; code = main(['--help']);"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, modules = json.loads(run.stderr)
    assert status == 0
    heavy = {"asyncio_dgram", "cryptography", "isal", "layers", "rich", "scapy"}
    assert heavy.isdisjoint(modules)
    ours = {name for name in modules if name.split(".")[0] == "rocemu"}
    assert ours == {"rocemu", "rocemu.cli", "rocemu.cli.main"}


def test_python_dash_m_is_the_same_program() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "rocemu", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"rocemu {__version__}\n"
    bad = subprocess.run([sys.executable, "-m", "rocemu", "play"], capture_output=True, check=False)
    assert bad.returncode == 2
