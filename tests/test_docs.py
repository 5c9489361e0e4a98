"""What README and docs show is run as written: Python blocks, and the commands of the story."""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocemu.cli.main import COMMANDS
from rocemu.daemon.config import RequesterConfig, ResponderConfig
from rocemu.daemon.output import LINES
from rocemu.daemon.requester import Requester
from rocemu.daemon.responder import Responder

ROOT = Path(__file__).parents[1]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=folder, env=ENV, capture_output=True, text=True, check=False, timeout=60
    )


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A block of commands, ``rocemu`` being this checkout's."""
    return run(["sh", "-c", f'rocemu() {{ "{sys.executable}" -m rocemu "$@"; }}\n{script}'], folder)


@contextmanager
def responder(script: str, folder: Path) -> Iterator[Path]:
    """A responder started by a documented command; gives the file with its output."""
    output = folder / "responder.out"
    command = script.replace("rocemu ", f'exec "{sys.executable}" -m rocemu ', 1)
    with output.open("w") as stream:
        process = subprocess.Popen(["sh", "-c", command], cwd=folder, env=ENV, stdout=stream)
        try:
            while "listening" not in output.read_text():
                assert process.poll() is None, "the responder ended"
                time.sleep(0.01)
            yield output
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0


def test_the_library_page_runs_as_one_program(tmp_path: Path) -> None:
    program = tmp_path / "library.py"
    program.write_text("\n".join(blocks("docs/library.md", "python")), encoding="utf-8")
    result = run([sys.executable, str(program)], tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for line in ("b'a longer hello'", "0", "1", "IBV_WC_REM_ACCESS_ERR"):
        assert line in lines
    assert any(line.startswith("(b'sixteen bytes ok', WC(") for line in lines)


def test_the_work_request_by_hand_writes_what_it_gathered(tmp_path: Path) -> None:
    *_, by_hand = blocks("docs/library.md", "python")
    others = "\n".join(blocks("docs/library.md", "python")[:2])
    program = f"""{others}
{by_hand}
async def main():
    ready = asyncio.Event()
    serving = asyncio.create_task(responder(ready))
    await ready.wait()
    async with await rocemu.Nic.open("127.0.0.2") as nic:
        async with await rocemu.connect(nic, "127.0.0.1") as peer:
            print((await by_hand(peer)).status.name)
            print(await peer.read(peer.regions["rw"], 15))
            await peer.send(b"sixteen bytes ok")
    await serving

asyncio.run(main())
"""
    result = run([sys.executable, "-c", program], tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[:2] == ["IBV_WC_SUCCESS", "b'from two places'"]


def test_the_story_of_the_readme_comes_out_as_it_says(tmp_path: Path) -> None:
    first, seven_steps, causes, local, *_ = blocks("README.md", "sh")
    with responder(first, tmp_path) as output:
        steps = shell(seven_steps, tmp_path)
        refused = shell(causes, tmp_path)
        caught = shell(local, tmp_path)
    assert re.findall(r"IBV_WC_\w+(?=  |\s+\[)", steps.stdout)[1::2] == [
        "IBV_WC_SUCCESS",
        "IBV_WC_SUCCESS",
        "IBV_WC_REM_ACCESS_ERR",
        "IBV_WC_WR_FLUSH_ERR",
    ]
    assert steps.returncode == 1
    assert refused.stdout.count("IBV_WC_REM_ACCESS_ERR") == 2
    assert "IBV_WC_LOC_PROT_ERR" in caught.stdout
    told = output.read_text()
    assert "violation (remote): permission: remote_write not in remote_read; MR ro" in told
    assert "violation (remote): bounds: " in told
    assert "violation (remote): key: 0xdeadbeef never issued" in told
    assert told.count("violation") == 3  # the local half is none of its business
    assert "IBV_EVENT_QP_ACCESS_ERR" in told
    assert "IBV_QPS_RTS -> IBV_QPS_ERR" in told


def test_the_library_and_scapy_examples_of_the_readme(tmp_path: Path) -> None:
    first = blocks("README.md", "sh")[0]
    library, by_hand = blocks("README.md", "python")
    with responder(first, tmp_path):
        result = run([sys.executable, "-c", library], tmp_path)
    assert result.stdout == "b'a longer hello'\n", result.stderr
    packet = run([sys.executable, "-c", by_hand], tmp_path)
    # The ICRC of the same packet in the protocol reference's golden vectors.
    assert re.search(r"icrc\s+= 0x6cf39ef5", packet.stdout), packet.stderr


def test_the_static_mode_page_works_as_typed(tmp_path: Path) -> None:
    (static,) = [block for block in blocks("docs/daemons.md", "sh") if "--static" in block]
    serve, ask = static.split("rocemu requester")
    with responder(serve, tmp_path) as output:
        result = shell(f"rocemu requester{ask}", tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
    for text in (output.read_text(), result.stdout):
        assert "local address:  LID 0x0000, QPN 0x0000" in text
    assert "PSN 0x0003e8" in result.stdout


def test_the_toml_example_is_a_responder(tmp_path: Path) -> None:
    (example,) = blocks("docs/daemons.md", "toml")
    file = tmp_path / "responder.toml"
    file.write_text(example)
    config = ResponderConfig.build(file, {})
    assert [spec.name for spec in config.mr] == ["ro", "rw"]
    assert set(tomllib.loads(example)) == {"bind", "mr", "recv", "capture"}


@pytest.mark.parametrize("event", list(LINES))
def test_every_event_is_documented(event: str) -> None:
    assert f"| `{event}` |" in (ROOT / "docs/daemons.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "daemon",
    [Responder(ResponderConfig(), print), Requester(RequesterConfig(), print)],  # type: ignore[arg-type]
)
def test_every_control_command_is_documented(daemon: Responder | Requester) -> None:
    page = (ROOT / "docs/daemons.md").read_text(encoding="utf-8")
    for command in daemon.commands():
        assert re.search(rf"\| .*`{command}[ `]", page), command


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_is_in_the_readme(command: str) -> None:
    assert f"`rocemu {command}" in (ROOT / "README.md").read_text(encoding="utf-8")
