"""The Wireshark profile, judged by tshark; a daemon's capture through a pipe."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocemu.audit.dissect import Dissector
from rocemu.capture import open_capture
from tests.audit.made import golden_captures
from tests.audit.test_filter import selected, tshark_counts
from tests.net.pair import next_address

PROFILE = Path(__file__).parents[2] / "docs/wireshark/rocemu"
COLOURS = dict(re.findall(r"^@([^@]+)@([^@]+)@", (PROFILE / "colorfilters").read_text(), re.M))
SAVED = dict(re.findall(r'^"([^"]+)" (.+)$', (PROFILE / "dfilters").read_text(), re.M))

pytestmark = pytest.mark.needs_tshark


def capture(stem: str) -> Path:
    (path,) = (path for path in golden_captures() if path.stem == stem)
    return path


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All captures that are kept, one behind the other."""
    path = tmp_path_factory.mktemp("merged") / "all.pcapng"
    subprocess.run(["mergecap", "-a", "-w", path, *golden_captures()], check=True)
    return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A Wireshark whose only profile is ours."""
    shutil.copytree(PROFILE, tmp_path / "profiles" / "rocemu")
    return {**os.environ, "WIRESHARK_CONFIG_DIR": str(tmp_path)}


def tshark(environment: dict[str, str], *words: object) -> list[str]:
    command = ["tshark", "-C", "rocemu", "-n", *map(str, words)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return said.stdout.splitlines()


def rules(environment: dict[str, str], path: Path) -> list[str]:
    words = ["--color", "-r", path, "-T", "fields", "-e", "frame.coloring_rule.name"]
    return tshark(environment, *words)


def test_each_rule_colours_what_it_is_named_after(environment: dict[str, str], merged) -> None:
    connect = ["RoCE connection"] * 3
    assert rules(environment, capture("permission")) == [
        *connect,
        *["RoCE request", "RoCE answer"] * 2,
        "rocemu comment",
        "RoCE NAK fatal",
        *["RoCE connection"] * 2,
    ]
    assert rules(environment, capture("opcode"))[3] == "RoCE NAK fatal"
    assert set(COLOURS) - set(rules(environment, merged)) == {"RoCE congestion"}  # none has a CNP


def test_the_profiles_filters_are_ours_too(merged: Path) -> None:
    filters = {**COLOURS, **SAVED}
    counts = tshark_counts(merged, list(filters.values()))
    with open_capture(merged) as reader:
        packets = list(Dissector().dissect_all(reader))
    ours = {name: len(selected(text, packets)) for name, text in filters.items()}
    assert ours == dict(zip(filters, counts, strict=True))
    assert [name for name, count in ours.items() if not count] == [
        "RoCE congestion",
        "RoCE: congestion notification",
    ]


def test_columns_and_the_heuristic_that_is_off(environment: dict[str, str]) -> None:
    nak = tshark(environment, "-r", capture("permission"))[8].split()
    assert nak[2:7] == ["192.0.2.1", "192.0.2.2", "0x000011", "13459776", "2"]
    assert tshark(environment, "-r", capture("rnr"), "-Y", "_ws.malformed || rpcordma") == []


@pytest.mark.parametrize("option", ["-i", "-r"])
def test_a_responders_capture_through_a_pipe(option: str) -> None:
    """As ``rocemu responder --capture - | wireshark -k -i -``: -i goes through dumpcap."""
    if option == "-i" and not shutil.which("dumpcap"):
        pytest.skip("dumpcap is not installed")
    address, own = next_address(), next_address()
    rocemu = [sys.executable, "-m", "rocemu"]
    responder = subprocess.Popen(
        [*rocemu, "responder", "--bind", address, "--mr", "r:64:remote_read", "--capture", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=False,
    )
    try:
        assert responder.stdout is not None
        assert responder.stderr is not None
        judge = subprocess.Popen(
            ["tshark", option, "-", "-T", "fields", "-e", "infiniband.bth.opcode"],
            stdin=responder.stdout,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        responder.stdout.close()
        assert b"listening" in responder.stderr.readline()
        subprocess.run(
            [*rocemu, "requester", "--bind", own, address, "read r+0 8"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        responder.send_signal(signal.SIGTERM)
        said, _ = judge.communicate(timeout=60)
        responder.stderr.read()
        assert responder.wait(30) == 0
    finally:
        responder.kill()
        responder.wait()
        responder.stderr.close()
    assert said.split() == b"100 100 100 12 16 100 100".split()
