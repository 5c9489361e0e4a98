"""``rocemu scenario``: exit codes, what is printed, the capture."""

import json
import subprocess
from pathlib import Path

import pytest

from rocemu.capture import read_capture
from rocemu.cli.main import main

GALLERY = Path(__file__).parents[2] / "scenarios"
GAP = GALLERY / "psn-gap.toml"


def run(*words: object) -> int:
    return main(["scenario", *map(str, words)])


def altered(folder: Path, old: str, new: str) -> Path:
    text = GAP.read_text(encoding="utf-8")
    assert old in text
    file = folder / "altered.toml"
    file.write_text(text.replace(old, new), encoding="utf-8")
    return file


def test_what_comes_as_expected_is_one_line_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", GAP, GALLERY / "lost-ack.toml") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in lines[:2]] == ["ok ", "ok "]
    assert lines[2] == "2 scenarios, all as expected"


def test_a_difference_is_shown_with_what_was_expected_and_what_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = altered(tmp_path, "Error  psn=+1 msn=0", "Error  psn=+1 msn=1")
    assert run("run", GAP, file) == 1
    out = capsys.readouterr().out
    assert f"NOT {file}" in out
    assert "expected  < NAK PSN Sequence Error  psn=+1 msn=1" in out
    assert "came      < NAK PSN Sequence Error  psn=+1 msn=0   (msn: expected 1)" in out
    assert "2 scenarios, 1 with a difference" in out


def test_verbose_shows_every_line_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "-v", GAP) == 0
    out = capsys.readouterr().out
    assert "0.010000 ms       < NAK PSN Sequence Error" in out
    assert "nothing else comes" in out


def test_json_is_one_object_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = altered(tmp_path, "completion 1 IBV_WC_SUCCESS", "completion 1 IBV_WC_REM_OP_ERR")
    assert run("run", "--json", GAP, file) == 1
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert good["good"] is True
    assert bad["good"] is False
    assert bad["expected"] == "requester: completion 1 IBV_WC_REM_OP_ERR"
    assert bad["came"] == "1 IBV_WC_SUCCESS byte_len=1280"
    assert file.read_text().splitlines()[bad["line"] - 1].startswith("requester: completion")


def test_a_bad_file_is_one_sentence_and_nothing_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = altered(tmp_path, "both.path_mtu = 256", "both.path_mtu = 257")
    assert run("run", GAP, file) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{file}: table 'requester', key 'path_mtu': path MTU 257" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["play", GAP], "'run' is what can be done"),
        (["run", "/nowhere/x.toml"], "/nowhere/x.toml: No such file or directory"),
        (["run", GAP, GAP, "--capture", "x.pcapng"], "goes with one scenario only"),
        (["run"], "Missing argument"),
    ],
)
def test_bad_usage(words: list[object], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    assert says in capsys.readouterr().err


def test_the_capture_is_the_same_every_time_and_shows_what_was_lost(tmp_path: Path) -> None:
    files = [tmp_path / "a.pcapng", tmp_path / "b.pcapng"]
    for file in files:
        assert run("run", GAP, "--capture", file) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    with files[0].open("rb") as stream:
        comments = [packet.comments for packet in read_capture(stream)]
    assert comments[1] == ("fault: dropped by 'drop tx psn=+1 once'",)
    assert len(comments) == 11


@pytest.mark.needs_tshark
def test_tshark_reads_the_capture(tmp_path: Path) -> None:
    file = tmp_path / "gap.pcapng"
    assert run("run", GAP, "--capture", file) == 0
    fields = ["-T", "fields", "-e", "infiniband.bth.psn", "-e", "infiniband.aeth.syndrome"]
    result = subprocess.run(
        ["tshark", "-r", file, "-Y", "infiniband.bth.opcode == 17", *fields],
        capture_output=True,
        text=True,
        check=True,
    )
    psns = [line.split("\t") for line in result.stdout.splitlines()]
    assert [int(psn) - 0x100 for psn, _ in psns] == [1, 4]
    assert [int(syndrome, 0) for _, syndrome in psns] == [0x60, 0x1F]
