"""``rocemu inspect``: what it prints and writes, exit codes, sentences."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rocemu.audit.field_table import FIELDS
from rocemu.capture import open_capture
from rocemu.cli.main import main
from tests.audit.made import ETHERNET, frames, golden_captures, write_capture

ROOT = Path(__file__).parents[2]
PCAPS = ROOT / "pcaps"
REFUSED = PCAPS / "soft-roce/write_badrkey.pcap"
RPING = PCAPS / "soft-roce/rping.pcap"
TWO = PCAPS / "soft-roce/by-hand/inject.pcap"
COMMAND = [sys.executable, "-m", "rocemu", "inspect"]


class Said:
    """What a run printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        self.lines = out.splitlines()


@pytest.fixture
def inspect(capfd: pytest.CaptureFixture[str]):
    def run(*arguments: object) -> Said:
        code = main(["inspect", *map(str, arguments)])
        return Said(code, *capfd.readouterr())

    return run


def process(*arguments: object, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=data,
        capture_output=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )


def test_one_line_a_packet_and_a_sentence_about_all(inspect) -> None:
    said = inspect("-r", REFUSED)
    assert said.code == 0
    assert len(said.lines) == 5
    assert said.lines[3].split()[:5] == ["4", "0.005521", "10.77.0.3", "→", "10.77.0.2"]
    assert "NAK Remote Access Error" in said.lines[3]
    assert said.err == "5 frames, 5 RoCE: 5 with the right ICRC, 0 with a wrong one\n"


def test_a_filter_selects_and_frames_keep_their_numbers(inspect) -> None:
    said = inspect("-r", RPING, "-Y", "infiniband.bth.opcode == 12")
    assert [line.split()[0] for line in said.lines] == ["6", "18"]


def test_count_is_of_frames_read(inspect) -> None:
    assert len(inspect("-r", RPING, "-c", "7", "-Y", "infiniband.aeth").lines) == 2


def test_tree_and_hex(inspect) -> None:
    said = inspect("-r", REFUSED, "-V", "-x", "-Y", "frame.number == 4")
    assert "    Syndrome: 98 (NAK Remote Access Error)" in said.lines
    assert said.lines[-5].startswith("0000  52 54 00 77 00 02")
    assert not any("→" in line for line in said.lines)


def test_hex_alone_comes_behind_the_line(inspect) -> None:
    said = inspect("-r", REFUSED, "-x", "-c", "1")
    assert "→" in said.lines[0]
    assert said.lines[1].startswith("0000  ")


def test_json_is_an_object_a_line(inspect) -> None:
    records = [json.loads(line) for line in inspect("-r", RPING, "--json").lines]
    assert [record["number"] for record in records] == list(range(1, 30))
    assert {record["icrc"] for record in records} == {"right"}


def test_conversations(inspect) -> None:
    said = inspect("-r", RPING, "-q")
    assert len(said.lines) == 2
    assert "10.77.0.2 QP 0x1e" in said.lines[1]
    assert "15 / 14" in said.lines[1]
    assert said.lines[1].endswith("connection manager")
    (record,) = map(json.loads, inspect("-r", RPING, "-q", "--json").lines)
    assert record["packets"] == [15, 14]


def test_ladder(inspect) -> None:
    said = inspect("-r", REFUSED, "--ladder")
    assert said.lines[0].split() == ["10.77.0.2", "QP", "0x12", "10.77.0.3", "QP", "0x12"]
    assert "◀" in said.lines[4]
    assert "NAK Remote Access Error" in said.lines[4]
    assert said.lines[5].rstrip("│").rstrip().endswith("QP -> IBV_QPS_ERR ●")


def test_ladders_as_files(inspect, tmp_path: Path) -> None:
    svg, text = tmp_path / "a.svg", tmp_path / "a.mmd"
    said = inspect("-r", REFUSED, "--ladder-svg", svg, "--ladder-mermaid", text)
    assert (said.code, said.out) == (0, "")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert text.read_text().startswith("sequenceDiagram\n")
    assert "sequenceDiagram" in inspect("-r", REFUSED, "--ladder-mermaid", "-").out


def test_selected_packets_are_written_as_they_were(inspect, tmp_path: Path) -> None:
    made, out = write_capture(tmp_path / "in.pcapng", frames()), tmp_path / "out.pcapng"
    said = inspect("-r", made, "-Y", "frame.number <= 3", "-w", out)
    assert (said.code, said.out) == (0, "")
    with open_capture(made) as before, open_capture(out) as after:
        assert list(after) == list(before)[:3]
        assert after.interfaces == [ETHERNET]


@pytest.mark.needs_tshark
def test_tshark_reads_what_was_written(inspect, tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    inspect("-r", RPING, "-Y", "infiniband.reth", "-w", out)
    fields = ["-T", "fields", "-e", "infiniband.bth.psn", "-e", "frame.time_epoch"]
    ours, theirs = (
        subprocess.run(["tshark", *words, *fields], capture_output=True, check=True).stdout
        for words in (["-r", out], ["-r", RPING, "-Y", "infiniband.reth"])
    )
    assert ours == theirs
    assert len(ours.splitlines()) == 4


def test_vectors_and_back(inspect, tmp_path: Path) -> None:
    vectors, back = tmp_path / "v.txt", tmp_path / "back.pcapng"
    assert inspect("-r", REFUSED, "--vectors", vectors).code == 0
    assert inspect("-r", vectors, "-w", back).code == 0
    with open_capture(REFUSED) as before, open_capture(back) as after:
        assert [packet.data for packet in after] == [packet.data[14:] for packet in before]


def test_vectors_that_contradict_themselves_are_a_sentence(inspect, tmp_path: Path) -> None:
    vectors = tmp_path / "v.txt"
    inspect("-r", REFUSED, "--vectors", vectors)
    vectors.write_text(vectors.read_text().replace("ip.ttl=64", "ip.ttl=63"))
    said = inspect("-r", vectors)
    assert said.code == 1
    assert f"{vectors}: after packet 0: line 4: the fields do not give the bytes" in said.err


OUTPUTS = ["-w", "--vectors", "--ladder-svg", "--ladder-mermaid"]


@pytest.mark.parametrize("option", OUTPUTS)
def test_no_file_is_overwritten_without_force(option: str, inspect, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("precious")
    said = inspect("-r", REFUSED, option, path)
    assert (said.code, said.out) == (1, "")
    assert said.err == f"rocemu inspect: {path} exists; --force overwrites it\n"
    assert path.read_text() == "precious"
    assert inspect("-r", REFUSED, option, path, "--force").code == 0
    assert path.read_bytes() != b"precious"


@pytest.mark.parametrize("option", OUTPUTS)
def test_the_file_that_is_read_is_never_written(option: str, inspect, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(REFUSED.read_bytes())
    said = inspect("-r", path, option, path, "--force")
    assert (said.code, said.err) == (1, f"rocemu inspect: {path} is the file that is read\n")
    assert path.read_bytes() == REFUSED.read_bytes()


USAGE = {
    ("-Y", "ip.srcc"): "Invalid value for -Y: no field ip.srcc; did you mean ip.src?, at character",
    ("-Y", ""): "the filter is empty",
    ("-c", "0"): "Input should be greater than or equal to 1",
    ("-w", "-", "-V"): "only one output can go to standard output",
    ("-w", "-", "--vectors", "-"): "only one output can go to standard output",
    ("--nonsense",): "No such option",
}


@pytest.mark.parametrize("words", USAGE)
def test_bad_usage_is_a_sentence(words: tuple[str, ...], inspect) -> None:
    said = inspect("-r", REFUSED, *words)
    assert said.code == 2
    assert USAGE[words] in said.err
    assert said.err.startswith("rocemu inspect: ")


FILES = {
    "no capture": (b"GET / HTTP/1.1", "not a pcap, pcapng or ERF file: it begins with 47 45 54"),
    "empty": (b"", "the file is empty"),
    "cut header": (REFUSED.read_bytes()[:20], "not a whole pcap file"),
    "broken gzip": (b"\x1f\x8b\x08" + bytes(20), "the gzip stream"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_capture_is_a_sentence(name: str, inspect, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(FILES[name][0])
    said = inspect("-r", path)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"rocemu inspect: {path}: {FILES[name][1]}")
    assert inspect("-r", tmp_path / "nothing").err == (
        f"rocemu inspect: No such file or directory: {tmp_path / 'nothing'}\n"
    )


def test_a_damaged_file_gives_what_is_before_and_exit_code_1(inspect, tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(REFUSED.read_bytes()[:-30])
    said = inspect("-r", path)
    assert said.code == 1
    assert len(said.lines) == 4
    assert f"{path}: after packet 4: the file ends in a packet" in said.err


def test_what_is_not_roce_is_counted_and_shown_when_asked_for(inspect, tmp_path: Path) -> None:
    path = write_capture(tmp_path / "made.pcapng", frames()[-2:] + frames()[:2])
    said = inspect("-r", path)
    assert len(said.lines) == 2
    assert "not RoCE: 1 neither IP nor RoCE, 1 IPv4" in said.err
    assert len(inspect("-r", path, "-Y", "!infiniband").lines) == 2


def test_native_infiniband_is_named(inspect, tmp_path: Path) -> None:
    head = (0xA1B2C3D4).to_bytes(4, "little") + b"\2\0\4\0" + bytes(8)
    frame = bytes.fromhex("0002000100080002") + bytes(20)
    record = bytes(8) + len(frame).to_bytes(4, "little") * 2 + frame
    path = tmp_path / "native.pcap"
    path.write_bytes(head + (65535).to_bytes(4, "little") + (247).to_bytes(4, "little") + record)
    said = inspect("-r", path, "-Y", "frame")
    assert "not RoCE: 1 native InfiniBand" in said.err
    assert "native InfiniBand" in said.out


def test_frames_that_were_cut_are_counted(inspect, tmp_path: Path) -> None:
    data = bytearray(REFUSED.read_bytes())
    first = int.from_bytes(data[32:36], "little")
    data[36:40] = (first + 1).to_bytes(4, "little")
    path = tmp_path / "cut.pcap"
    path.write_bytes(data)
    assert "1 frames were cut by the snap length" in inspect("-r", path).err


def test_gzip_from_standard_input() -> None:
    said = process("-r", "-", data=gzip.compress(RPING.read_bytes()))
    assert said.returncode == 0
    assert len(said.stdout.splitlines()) == 29


def test_packets_of_a_live_pipe_are_shown_as_they_come(tmp_path: Path) -> None:
    data = RPING.read_bytes()
    buffering = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    running = subprocess.Popen(
        [*COMMAND, "-r", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=buffering,
    )
    assert running.stdin is not None
    assert running.stdout is not None
    deadline = threading.Timer(60, running.kill)
    deadline.start()
    try:
        running.stdin.write(data[: 24 + 16 + 322])
        running.stdin.flush()
        assert b"CM REQ" in running.stdout.readline()  # while the pipe is open
        running.stdin.close()
        assert running.wait() == 0
    finally:
        deadline.cancel()
        running.stdout.close()


def test_a_reader_that_goes_away_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "long.pcap"
    data = RPING.read_bytes()
    path.write_bytes(data[:24] + data[24:] * 400)
    command = f"{' '.join(COMMAND)} -r {path} | head -1"
    said = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=ROOT
    )
    assert said.returncode == 0
    assert "Traceback" not in said.stderr
    assert "Broken pipe" not in said.stderr


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Twenty-five thousand packets against eight thousand."""
    data = RPING.read_bytes()
    used = []
    for times in (280, 860):
        path = tmp_path / f"{times}.pcap"
        path.write_bytes(data[:24] + data[24:] * times)
        program = (
            "import re, sys\nfrom pathlib import Path\nfrom rocemu.cli.main import main\n"
            "code = main(sys.argv[1:])\n"
            "print(*re.findall(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text()),"
            " file=sys.stderr)\nsys.exit(code)"
        )
        outputs = ["-w", os.devnull, "-q"]
        said = subprocess.run(
            [sys.executable, "-c", program, "inspect", "-r", path, *outputs],
            capture_output=True,
            check=True,
            cwd=ROOT,
        )
        used.append(int(said.stderr.splitlines()[-1]))
    assert used[1] - used[0] < 4096  # kilobytes


@pytest.mark.parametrize("path", golden_captures(), ids=lambda path: path.stem)
def test_every_kept_capture_is_shown_whole(path: Path, inspect) -> None:
    said = inspect("-r", path, "-Y", "frame")
    with open_capture(path) as reader:
        assert len(said.lines) == len(list(reader))
    assert said.code == 0
    assert "wrong" not in said.out or path.stem == "inject"


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs/captures.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_page_is_run_as_written(tmp_path: Path) -> None:
    (tmp_path / "pcaps").symlink_to(PCAPS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    rocemu = f'set -e\nrocemu() {{ "{sys.executable}" -m rocemu "$@"; }}\n'
    said = subprocess.run(
        ["sh", "-c", rocemu + blocks("sh")[0]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "pcaps", "rping.svg", "rping.mmd", "rping.vectors", "rping.pcapng",
    }  # fmt: skip
    example = blocks("console")[0]
    command, *lines = example.splitlines()
    shown = subprocess.run(
        ["sh", "-c", rocemu + command.removeprefix("$ ")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == lines


def test_every_option_and_own_field_is_on_the_page(inspect) -> None:
    page = (ROOT / "docs/captures.md").read_text(encoding="utf-8")
    for option in re.findall(
        r"^ *(?:--read, )?(-\w|--[\w-]+)", inspect("--help").out, re.MULTILINE
    ):
        if option not in ("-h", "--help", "--read"):
            assert f"`{option}" in page, option
    for name in FIELDS:
        if name.startswith("rocemu."):
            assert f"`{name}`" in page, name


def test_help_has_examples(inspect) -> None:
    said = inspect("--help")
    assert "rocemu inspect -r capture.pcapng -q" in said.out


def test_piece_of_text_is_no_vector_file() -> None:
    assert io.BytesIO(b"# rocemu").read(4) == b"# ro"
    said = process("-r", "-", data=b"# rocemu")
    assert b"not a pcap, pcapng or ERF file" in said.stderr
