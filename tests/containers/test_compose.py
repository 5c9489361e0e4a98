"""The compose file, really run: the story ends with 0 and leaves a capture with the NAK in it.

``make containers`` runs this where it has to find, or start, a Docker engine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocemu.capture import open_capture
from rocemu.wire import icrc_of_ip

PROJECT = Path(__file__).parents[2]
CAPTURE = PROJECT / "pcaps" / "compose" / "violation.pcap"
RESPONDER, REQUESTER = "172.28.47.10", "172.28.47.20"

pytestmark = [pytest.mark.needs_docker, pytest.mark.needs_tshark]


def compose(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "compose", *words],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout,
    )


def tshark(display_filter: str, *fields: str) -> list[list[str]]:
    """Rows of fields of the packets that the filter finds."""
    wanted = [word for field in fields for word in ("-e", field)]
    run = subprocess.run(
        ["tshark", "-r", str(CAPTURE), "-Y", display_filter, "-T", "fields", *wanted],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split("\t") for line in run.stdout.splitlines()]


@pytest.fixture(scope="module")
def story() -> Iterator[subprocess.CompletedProcess[str]]:
    """The documented command, over what an earlier run may have left behind."""
    CAPTURE.unlink(missing_ok=True)
    CAPTURE.write_bytes(b"left by an earlier run")
    try:
        yield compose(
            "up", "--abort-on-container-exit", "--exit-code-from", "requester", timeout=600
        )
    finally:
        compose("down", "--volumes", "--remove-orphans", "--timeout", "2")


def test_the_story_ends_with_0(story: subprocess.CompletedProcess[str]) -> None:
    assert story.returncode == 0, story.stdout


@pytest.mark.usefixtures("story")
def test_every_container_ended_cleanly() -> None:
    """Compose ends the responder and the capture by SIGTERM; theirs is an exit code of 0 too."""
    listed = compose("ps", "--all", "--format", "{{.Service}} {{.ExitCode}}").stdout.splitlines()
    assert sorted(listed) == ["capture 0", "requester 0", "responder 0"]


def test_the_capture_holds_the_nak(story: subprocess.CompletedProcess[str]) -> None:
    rows = tshark("infiniband.aeth.syndrome == 0x62", "ip.src", "ip.dst", "infiniband.bth.opcode")
    assert rows == [[RESPONDER, REQUESTER, "17"]], story.stdout


def test_the_capture_holds_the_whole_story(story: subprocess.CompletedProcess[str]) -> None:
    """READ and its response, WRITE and its ACK, the refused WRITE; the flushed READ never left."""
    opcodes = [row[0] for row in tshark("infiniband.bth.opcode < 32", "infiniband.bth.opcode")]
    assert opcodes == ["12", "16", "10", "17", "10", "17"], story.stdout
    connected = tshark("infiniband.mad.attributeid == 0x0010", "ip.src")
    assert connected == [[REQUESTER]], "the connection's REQ is missing: capture began too late"
    assert tshark("_ws.malformed", "frame.number") == []


def test_every_icrc_is_right_for_the_ip_header_on_the_wire(
    story: subprocess.CompletedProcess[str],
) -> None:
    with open_capture(CAPTURE) as capture:
        packets = [packet.data[14:] for packet in capture]
    assert packets, story.stdout
    for packet in packets:
        assert icrc_of_ip(packet[:-4]).to_bytes(4, "little") == packet[-4:], packet.hex()


@pytest.mark.usefixtures("story")
def test_the_capture_is_readable_by_the_user() -> None:
    assert CAPTURE.stat().st_mode & 0o444 == 0o444


@pytest.mark.usefixtures("story")
def test_daemons_have_neither_root_nor_capabilities() -> None:
    status = compose(
        *("run", "--rm", "--no-deps", "--entrypoint", "cat", "requester", "/proc/self/status")
    )
    fields = dict(line.split(":\t", 1) for line in status.stdout.splitlines() if ":\t" in line)
    assert fields["Uid"].split()[0] != "0"
    assert fields["CapBnd"] == fields["CapEff"] == "0" * 16
