"""``rocemu audit`` as it is typed: exit codes, text, JSON, pipes, and its page in docs."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocemu.audit.findings import KINDS
from rocemu.audit.icrc_mistakes import STREAMS
from rocemu.audit.icrc_results import RESULTS
from rocemu.capture import CapturedPacket, Interface, PcapngWriter, build_frame
from rocemu.cli.main import main
from rocemu.wire import BTH, Flow, Op, Packet, build, seal
from tests.audit.talk import Talk

ROOT = Path(__file__).parents[2]
PCAPS = ROOT / "pcaps"
INJECTED = str(PCAPS / "soft-roce" / "by-hand" / "inject.pcap")
DOCS = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
ROCEMU = [sys.executable, "-m", "rocemu"]


def saved(talk: Talk, path: Path) -> str:
    talk.save(path)
    return str(path)


@pytest.fixture
def clean(tmp_path: Path) -> str:
    talk = Talk()
    talk.write(5000)
    talk.read(5000)
    return saved(talk, tmp_path / "clean.pcapng")


@pytest.fixture
def retried(tmp_path: Path) -> str:
    """Warnings, and no error."""
    talk = Talk()
    talk.write()
    talk.ask(Op.SEND_ONLY)
    talk.wait(100_000_000)
    talk.ask(Op.SEND_ONLY, psn=talk.q - 1)
    talk.ack()
    return saved(talk, tmp_path / "retried.pcapng")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_exit_codes(clean: str, retried: str, options: list[str], capsys):
    assert main(["audit", "-r", clean, *options]) == 0
    assert main(["audit", "-r", clean, "--strict", *options]) == 0
    assert main(["audit", "-r", retried, *options]) == 0
    assert main(["audit", "-r", retried, "--strict", *options]) == 1
    assert main(["audit", "-r", INJECTED, *options]) == 1
    assert capsys.readouterr().err == ""


def test_text(retried: str, capsys):
    main(["audit", "-r", retried])
    assert capsys.readouterr().out == (
        "3,4: warning retransmission: PSN 0x0003e9 sent again, no answer had come 100.010 ms "
        "after it was sent\n"
        "    10.1.0.1 -> 10.1.0.2 QP 0x12  [IBTA] 9.7.3, 9.7.6\n"
        "\n"
        "5 packets, 5 of them RoCE; ICRC: 5 right, 0 wrong, 0 not checked\n"
        "1 queue pairs with requests\n"
        "0 errors, 1 warnings, 0 notes\n"
        "        1 warning retransmission: Requests were sent again; the text says why\n"
    )


def test_json(retried: str, capsys):
    main(["audit", "-r", retried, "--json"])
    finding, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert finding == {
        "code": "retransmission",
        "severity": "warning",
        "packets": [3, 4],
        "where": "10.1.0.1 -> 10.1.0.2 QP 0x12",
        "text": "PSN 0x0003e9 sent again, no answer had come 100.010 ms after it was sent",
        "clause": "[IBTA] 9.7.3, 9.7.6",
    }
    assert last["summary"] == {
        "packets": 5,
        "roce": 5,
        "icrc_right": 5,
        "icrc_wrong": 0,
        "icrc_unchecked": 0,
        "exchanges": 1,
        "congestion_marks": 0,
        "cnps": 0,
        "errors": 0,
        "warnings": 1,
        "notes": 0,
        "damage": None,
    }


def test_text_shows_twenty_of_a_code(tmp_path: Path, capsys):
    talk = Talk()
    for _ in range(25):
        talk.put(build_frame(talk.there, 0, b"not RoCE"))
    assert main(["audit", "-r", saved(talk, tmp_path / "short.pcapng")]) == 1
    out = capsys.readouterr().out
    assert out.count("error datagram-short:") == 20
    assert "5 more of datagram-short: --json has them all" in out
    assert re.search(r"25 error +datagram-short", out)


def test_a_damaged_file_is_told(clean: str, capsys):
    path = Path(clean)
    path.write_bytes(path.read_bytes()[:-10])
    assert main(["audit", "-r", clean]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"rocemu audit: {clean}: after packet 11: the file ends in")
    assert captured.err.count("\n") == 1
    assert captured.out.startswith("7: note unfinished: ")
    assert "11 packets, 11 of them RoCE" in captured.out


@pytest.mark.parametrize("content", [b"", b"not a capture", bytes(100)])
def test_no_capture(content: bytes, tmp_path: Path, capsys):
    path = tmp_path / "nothing"
    path.write_bytes(content)
    assert main(["audit", "-r", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"rocemu audit: {path}: ")
    assert captured.err.count("\n") == 1


def test_bad_usage(tmp_path: Path, capsys):
    assert main(["audit"]) == 2
    assert main(["audit", "-r", INJECTED, "--explain-icrc", "0"]) == 2
    assert main(["audit", "-r", str(tmp_path / "missing")]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_standard_input_and_gzip(clean: str):
    for data in (Path(clean).read_bytes(), gzip.compress(Path(clean).read_bytes())):
        run = subprocess.run(
            [*ROCEMU, "audit", "-r", "-"], input=data, capture_output=True, check=True, cwd=ROOT
        )
        assert run.stdout.startswith(b"12 packets, 12 of them RoCE")


def test_output_that_nobody_reads():
    run = subprocess.run(
        f"{sys.executable} -m rocemu audit -r {INJECTED} --json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert json.loads(run.stdout)["code"] == "icrc-bad"
    assert run.stderr == ""


def test_a_long_capture_is_read_by_two_processes(tmp_path: Path):
    """The same findings as from one, in the same order; enough batches for the second process."""
    flow = Flow("10.0.0.1", "10.0.0.2", 0xC123)
    path = tmp_path / "long.pcapng"
    with path.open("wb") as file:
        writer = PcapngWriter(file, [Interface()])
        for number in range(45_000):
            psn = number + (number > 30_000)
            sealed = seal(build(Packet(BTH(Op.SEND_MIDDLE, 5, psn), bytes(1024))), flow)
            if number % 9000 == 8999:
                sealed = sealed[:-1] + b"!"
            frame = build_frame(flow, 0, sealed)
            writer.write(CapturedPacket(number * 1000, frame, len(frame), Interface()))
    outputs = []
    for cores in (1, 2):
        program = (
            f"import os; os.cpu_count = lambda: {cores}; import rocemu.cli.main as m; m.main()"
        )
        run = subprocess.run(
            [sys.executable, "-c", program, "audit", "-r", str(path), "--json"],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        assert run.stderr == ""
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
    codes = [json.loads(line).get("code") for line in outputs[0].splitlines()]
    assert codes.count("icrc-bad") == 5
    assert codes.count("psn-gap") == 4 + 1  # nothing follows the last of those
    summary = json.loads(outputs[0].splitlines()[-1])["summary"]
    assert summary["packets"] == 45_000


# --explain-icrc


def test_explain_a_right_one(capsys):
    assert main(["audit", "-r", INJECTED, "--explain-icrc", "20"]) == 0
    out = capsys.readouterr().out
    assert "  IPv4                  45 [ff] 00  7c  00  00  40  00 [ff] 11 [ff][ff] 0a  4d" in out
    assert "  BTH                   0a  40  ff  ff [ff] 00  00  62  00  00  05  00\n" in out
    assert out.endswith("stored    a9 1d dd e0   the same\n")


def test_explain_a_wrong_one(capsys):
    assert main(["audit", "-r", INJECTED, "--explain-icrc", "3"]) == 1
    out = capsys.readouterr().out
    assert "computed  b6 8b 26 28" in out
    assert "stored    28 26 8b b6   another one" in out
    assert out.endswith("byte-order: written most significant byte first\n")


def test_explain_as_json(capsys):
    assert main(["audit", "-r", INJECTED, "--explain-icrc", "3", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["packet"], shown["computed"], shown["stored"]) == (3, "b68b2628", "28268bb6")
    assert shown["right"] is False
    assert [cause["name"] for cause in shown["causes"]] == ["byte-order"]
    assert shown["sections"][0] == {
        "name": "in place of the LRH",
        "bytes": "ff" * 8,
        "masked": list(range(8)),
    }


def test_an_address_that_is_elsewhere_in_the_capture(tmp_path: Path, capsys):
    """Address translation on the way: sealed for an address of which other packets are."""
    talk = Talk()
    talk.write()
    body = build(Packet(BTH(Op.SEND_ONLY, 5, 5), b"hello"))
    inside = Flow("192.168.77.3", "10.1.0.2", 0xC111)
    talk.put(build_frame(talk.there, 7, seal(body, inside, 7)))
    talk.put(build_frame(inside, 8, seal(body, inside, 8)))
    path = saved(talk, tmp_path / "translated.pcapng")
    assert main(["audit", "-r", path, "--explain-icrc", "3"]) == 1
    assert "changed-address" not in capsys.readouterr().out  # seen later only
    talk.frames.reverse()
    path = saved(talk, tmp_path / "reversed.pcapng")
    assert main(["audit", "-r", path, "--explain-icrc", "2"]) == 1
    assert "changed-address: with another address" in (out := capsys.readouterr().out)
    assert "source 192.168.77.3" in out


def test_explain_what_is_not_there(capsys):
    assert main(["audit", "-r", INJECTED, "--explain-icrc", "155"]) == 1
    assert "there is no packet 155: the capture has 154" in capsys.readouterr().err
    kernel = str(PCAPS / "soft-roce" / "rc_pingpong_v6.pcap")
    assert main(["audit", "-r", kernel, "--explain-icrc", "1"]) == 1
    assert capsys.readouterr().err == "rocemu audit: packet 1: IPv4, but no whole UDP datagram\n"


# docs/audit.md


def table(heading: str) -> list[list[str]]:
    """Rows of the first table behind a text."""
    rows = DOCS[DOCS.index(heading) :].split("\n\n")
    lines = next(part for part in rows if part.startswith("| ")).splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_the_documented_codes_are_those_there_are():
    assert table("## Findings") == [
        [f"`{kind.code}`", kind.severity, kind.meaning, kind.clause.removeprefix("[IBTA] ")]
        for kind in KINDS.values()
    ]


def test_the_documented_mistakes_are_those_there_are():
    for heading, rows in (("the bytes that go", STREAMS), ("wrong with the CRC, alone", RESULTS)):
        assert table(heading) == [[f"`{row.name}`", row.meaning] for row in rows if row.name]


def test_the_documented_example(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    block = DOCS.split("```console\n")[1].split("```")[0]
    command, _, output = block.partition("\n")
    assert main(command.removeprefix("$ rocemu ").split()) == 0
    assert capsys.readouterr().out == output


def test_the_documented_json_keys(retried: str, capsys):
    main(["audit", "-r", retried, "--json"])
    finding, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    documented = set(
        re.findall(r"`(\w+)`", DOCS[DOCS.index("## JSON") : DOCS.index("## Findings")])
    )
    assert {*finding, *last["summary"]} <= documented
