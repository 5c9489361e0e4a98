"""``rocemu demo``: for each cause, played by real processes and judged by tshark."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rocemu.daemon.story import CAUSES, Moment, Story
from rocemu.wire import AETH, BTH, RETH, Op, Packet

ROOT = Path(__file__).parents[2]


def demo(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rocemu", "demo", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,  # type: ignore[call-overload]
    )


def tshark(capture: Path, *arguments: str) -> list[str]:
    command = ["tshark", "-r", str(capture), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()


@pytest.mark.needs_tshark
@pytest.mark.parametrize("cause", list(CAUSES))
def test_every_cause_looks_the_same_outside_and_is_named_inside(cause: str, tmp_path: Path) -> None:
    run = demo(cause, "--capture", "demo.pcapng", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " NOT" not in run.stdout
    assert "NAK Remote Access Error" in run.stdout
    assert "the requester knows:      IBV_WC_REM_ACCESS_ERR, and no reason" in run.stdout
    act = run.stdout.split("\n\n")[3]
    request, violation, nak = (act.index(w) for w in ("RDMA WRITE Only", "violation", "NAK"))
    assert request < violation < nak, "the ladder is in the order of time"
    capture = tmp_path / "demo.pcapng"
    naks = tshark(capture, "-Y", "infiniband.aeth.syndrome.opcode == 3", "-T", "fields",
                  "-e", "infiniband.aeth.syndrome", "-e", "ip.src")  # fmt: skip
    assert [line.split("\t") for line in naks] == [["98", "127.0.0.1"]]
    assert tshark(capture, "-Y", "_ws.malformed") == []
    (comment,) = tshark(capture, "-Y", "frame.comment", "-T", "fields", "-e", "frame.comment")
    assert comment.startswith(f"{cause}:")


@pytest.mark.needs_tshark
def test_the_local_half_alone_has_no_packet_for_the_refused_request(tmp_path: Path) -> None:
    run = demo("lkey", "--capture", "demo.pcapng", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "IBV_WC_LOC_PROT_ERR" in run.stdout
    writes = tshark(tmp_path / "demo.pcapng", "-Y", "infiniband.bth.opcode == 10")
    assert len(writes) == 1  # the allowed one
    assert tshark(tmp_path / "demo.pcapng", "-Y", "infiniband.aeth.syndrome.opcode == 3") == []


def test_by_default_it_is_a_missing_permission_and_a_capture_in_the_folder(tmp_path: Path) -> None:
    run = demo(cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "permission: remote_write not in remote_read; MR ro" in run.stdout
    assert "capture: rocemu-demo.pcapng" in run.stdout
    assert (tmp_path / "rocemu-demo.pcapng").stat().st_size > 1000


def test_step_waits_for_enter_before_each_step(tmp_path: Path) -> None:
    run = demo("lkey", "--step", cwd=tmp_path, input="\n" * 3)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("Enter to go on") == 3
    ended_early = demo("lkey", "--step", cwd=tmp_path, input="\n")
    assert ended_early.returncode == 1
    assert "Traceback" not in ended_early.stderr


def test_an_unknown_cause_is_bad_usage(tmp_path: Path) -> None:
    run = demo("greed", cwd=tmp_path)
    assert run.returncode == 2
    assert "allowed are permission, bounds, key, pd, state, lkey" in run.stderr


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 4791))
        run = demo(cwd=tmp_path)
    assert run.returncode == 1
    assert "UDP port 4791 of 127.0.0.1 is in use" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_capture_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    run = demo("--capture", "no/such/folder.pcapng", cwd=tmp_path)
    assert run.returncode == 1
    assert "no/such/folder.pcapng" in run.stderr
    assert "Traceback" not in run.stderr


# ------------------------------------------------------------------ the judgement itself


def transcript() -> list[Moment]:
    """What a good run of the permission story leaves, as far as its judgement reads it."""

    def record(mine: bool, event: str, **fields: object) -> Moment:
        return Moment(0.0, from_requester=mine, record={"event": event, **fields})

    write = Packet(BTH(Op.RDMA_WRITE_ONLY, 17, 7), reth=RETH(0, 0x100, 24))
    nak = Packet(BTH(Op.ACKNOWLEDGE, 17, 7), aeth=AETH(0x62, 2))
    error = {"to": "IBV_QPS_ERR"}
    return [
        Moment(0.0, write, from_requester=True),
        record(False, "violation", side="remote", causes=["permission"]),
        record(False, "async", type="IBV_EVENT_QP_ACCESS_ERR"),
        record(False, "qp_state", **error),
        Moment(0.0, nak),
        record(True, "qp_state", **error),
        record(True, "violation", side="local", causes=["key"]),
    ]


def judged(moments: list[Moment], *statuses: str) -> list[bool]:
    story = Story("permission", Path("x"), Path("x"))
    story.regions = {"rw": {"rkey": 0x200, "va": 0}}
    story.completions = [{"status": f"IBV_WC_{status}"} for status in statuses]
    return [check.good for check in story.checks(moments)]


STATUSES = ("SUCCESS", "REM_ACCESS_ERR", "WR_FLUSH_ERR", "LOC_PROT_ERR")


def test_a_good_transcript_passes_every_check() -> None:
    assert judged(transcript(), *STATUSES) == [True] * 9


@pytest.mark.parametrize(
    ("without", "failing"),
    [(0, {0, 5}), (1, {2, 8}), (2, {4}), (3, {4}), (4, {0, 1, 3, 5}), (5, {6}), (6, {7})],
)
def test_each_missing_part_fails_its_check(without: int, failing: set[int]) -> None:
    moments = transcript()
    del moments[without]
    good = judged(moments, *STATUSES)
    assert {index for index, value in enumerate(good) if not value} == failing


def test_another_nak_a_retry_or_a_packet_of_the_local_half_fails() -> None:
    moments = transcript()
    nak = moments[4].packet
    assert nak is not None
    invalid = replace(moments[4], packet=Packet(nak.bth, aeth=AETH(0x61, 2)))
    assert not judged([*moments[:4], invalid, *moments[5:]], *STATUSES)[3]
    assert not judged([moments[0], *moments], *STATUSES)[5]
    leaked = Packet(BTH(Op.RDMA_WRITE_ONLY, 17, 9), reth=RETH(128, 0x200, 32))
    assert not judged([*moments, Moment(0.0, leaked, from_requester=True)], *STATUSES)[8]
    assert not judged(moments, "SUCCESS")[5]
