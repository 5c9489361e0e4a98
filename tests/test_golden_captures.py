"""The captures of pcaps/ show what their README says, and tshark, Scapy and the codec agree."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rocemu.capture import CapturedPacket, decode_frame, open_capture
from rocemu.wire import IcrcMatch, parse, verify
from tests.judges import contrib_icrc

ROOT = Path(__file__).parent.parent
PCAPS = ROOT / "pcaps"
CAPTURES = sorted(PCAPS.glob("*.pcapng"))
#: Files that a daemon must still make packet by packet; the others take longer to play.
PLAYED_AGAIN = ("pd", "write", "atomics", "rnr", "ipv6", "psn")

capture = pytest.mark.parametrize("file", CAPTURES, ids=lambda file: file.stem)


class Row(NamedTuple):
    """A row of the README's table."""

    filter: str
    frames: list[int]


def _rows() -> dict[str, Row]:
    rows = {}
    for line in (PCAPS / "README.md").read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"\| `([\w.]+)` \| .* \| `(.*)` \| ([\d ]+) \|", line):
            rows[found[1]] = Row(found[2], [int(number) for number in found[3].split()])
    return rows


ROWS = _rows()


@cache
def packets(file: Path) -> list[CapturedPacket]:
    with open_capture(file) as reader:
        found = list(reader)
        assert reader.damage is None
    return found


def tshark(name: str, shown: str, *fields: str) -> list[list[str]]:
    """The fields of the frames that a display filter finds."""
    wanted = [word for field in ("frame.number", *fields) for word in ("-e", field)]
    command = ["tshark", "-r", str(PCAPS / f"{name}.pcapng"), "-Y", shown, "-T", "fields", *wanted]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in run.stdout.splitlines()]


def test_every_capture_is_in_the_readme_and_small():
    assert sorted(ROWS) == [file.name for file in CAPTURES]
    assert sum(file.stat().st_size for file in CAPTURES) < 200_000


@capture
def test_every_icrc_is_right_for_the_codec_and_for_scapy_contrib(file: Path):
    for packet in packets(file):
        frame = decode_frame(packet.linktype, packet.data)
        assert frame is not None
        match, _ = verify(frame.payload, frame.flow, frame.ip_id)
        assert match is IcrcMatch.EXACT
        assert contrib_icrc(packet.data[14:]) == frame.payload[-4:]


@capture
def test_addresses_are_those_of_documentation(file: Path):
    for packet in packets(file):
        frame = decode_frame(packet.linktype, packet.data)
        assert frame is not None
        ends = {frame.flow.source, frame.flow.destination}
        assert ends in ({"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"})


@pytest.mark.needs_tshark
@capture
def test_the_filter_finds_the_frames_that_the_readme_names(file: Path):
    row = ROWS[file.name]
    assert [int(number) for (number,) in tshark(file.stem, row.filter)] == row.frames


@pytest.mark.needs_tshark
@capture
def test_tshark_finds_nothing_malformed_and_nothing_but_rocev2(file: Path):
    assert tshark(file.stem, "_ws.malformed or rpcordma or not infiniband") == []
    assert len(tshark(file.stem, "infiniband")) == len(packets(file))


@pytest.mark.needs_tshark
@pytest.mark.parametrize(
    ("name", "comment"),
    [
        ("permission", "permission: remote_write not in remote_read; MR ro"),
        ("bounds", "bounds: 0x2fff8+24 outside 0x20000+65536; MR rw"),
        ("key", "key: 0xdeadbe00 never issued"),
        ("pd", "pd: QP in PD 1, MR in PD 2; MR other"),
        ("state", "state: MR gone was deregistered"),
        ("ipv6", "permission: remote_write not in remote_read; MR ro"),
    ],
)
def test_the_refused_write_says_why(name: str, comment: str):
    """It is the last request, in front of the NAK, and has the NAK's PSN."""
    (nak,) = ROWS[f"{name}.pcapng"].frames
    fields = ("frame.comment", "infiniband.bth.opcode", "infiniband.bth.psn")
    ((number, said, opcode, psn),) = tshark(name, "frame.comment", *fields)
    assert (number, said, opcode) == (str(nak - 1), comment, "10")
    assert tshark(name, f"frame.number == {nak}", "infiniband.bth.psn") == [[str(nak), psn]]
    later = f"frame.number > {nak} and not infiniband.mad.attributeid"
    assert tshark(name, later) == [], "a queue pair in ERROR sends nothing more"


@pytest.mark.needs_tshark
def test_a_wrong_lkey_leaves_no_trace():
    """All requests and answers: one WRITE and its ACK; the NAK is nowhere."""
    fields = ("infiniband.bth.opcode", "infiniband.aeth.syndrome")
    assert tshark("lkey", "not infiniband.mad.attributeid", *fields) == [
        ["4", "10", ""],
        ["5", "17", "31"],
    ]


def test_multi_packet_messages_carry_the_licence():
    text = (ROOT / "LICENSE").read_bytes()
    assert _payloads("read", 5, 6, 7) == [text[:256], text[256:512], text[512:600]]
    assert _payloads("write", 4, 5, 6) == [text[:256], text[256:512], text[512:600]]
    assert _payloads("write", 8, 9) == [text[:256], text[256:500]]


def _payloads(name: str, *frames: int) -> list[bytes]:
    found = packets(PCAPS / f"{name}.pcapng")
    frame = [decode_frame(p.linktype, p.data) for p in found]
    return [bytes(parse(f.payload[:-4]).payload) for n in frames if (f := frame[n - 1])]


@pytest.mark.needs_tshark
def test_atomics_give_what_was_there_before():
    found = tshark("atomics", "infiniband.atomicacketh", "infiniband.atomicacketh.origremdt")
    assert [int(value) for _, value in found] == [0, 5, 9]
    assert _payloads("atomics", 11) == [(9).to_bytes(8, sys.byteorder)]


@pytest.mark.needs_tshark
def test_cm_messages_in_their_order():
    found = tshark("cm", "infiniband.mad.attributeid", "infiniband.mad.attributeid")
    assert [int(value, 16) for _, value in found] == [0x10, 0x13, 0x14, 0x15, 0x16]


@pytest.mark.needs_root
def test_the_daemons_still_send_these_packets(tmp_path: Path):
    """Bytes, comments and directions; when this is meant to change, run make captures."""
    command = [sys.executable, str(PCAPS / "make.py"), "--to", str(tmp_path), *PLAYED_AGAIN]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for name in PLAYED_AGAIN:
        kept, made = (_contents(folder / f"{name}.pcapng") for folder in (PCAPS, tmp_path))
        assert made == kept, name


def _contents(file: Path) -> list[Any]:
    return [(packet.data.hex(), packet.comments, packet.direction) for packet in packets(file)]


def test_a_name_that_is_none():
    command = [sys.executable, str(PCAPS / "make.py"), "nothing"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "no capture 'nothing'; there are permission, bounds" in run.stderr
