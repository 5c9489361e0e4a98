"""``rocemu replay``: captures played into live responders, and what differs is told."""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from rocemu.capture import CapturedPacket, PcapngWriter, open_capture
from rocemu.daemon.replay import Pace, ReplayOptions, replay
from rocemu.daemon.replay_script import Step, read_scripts
from rocemu.net.oneshot import OneShot
from tests.daemon.processes import Command, Finished, Start, address_of, ask, run_here
from tests.net.pair import next_address

ROOT = Path(__file__).parent.parent.parent
PCAPS = ROOT / "pcaps"
SOFT_ROCE = PCAPS / "soft-roce"

# as pcaps/make.py, but with addresses and keys that the responder chooses
RO = f"--mr ro:4096:remote_read:{ROOT / 'LICENSE'}"
RW = "--mr rw:64K:local_write,remote_write,remote_read,remote_atomic"
OTHER = "--mr other:4096:local_write,remote_write --other-pd other"
GONE = "--mr gone:4096:local_write,remote_write"
GOLDEN = {
    "permission": f"{RO} {RW}",
    "bounds": f"{RO} {RW}",
    "key": f"{RO} {RW}",
    "pd": f"{RO} {RW} {OTHER}",
    "lkey": RW,
    "read": RO,
    "write": RW,
    "atomics": RW,
    "rnr": "--recv 0 --rnr-timer 14",
    "cm": RW,
    "ipv6": f"{RO} {RW}",
}
STATIC_RW = f"{RW}@0x20000/0x222200"


def responder(start: Start, options: str) -> Command:
    command = start("responder", "--json", "--bind", next_address(), *shlex.split(options))
    command.wait_for("listening")
    return command


def played(file: Path, to: str, *options: str, bind: str | None = None) -> Finished:
    own = bind or next_address()
    return run_here("replay", "-r", str(file), to, "--bind", own, "--json", *options)


def changed(file: Path, number: int, change: Callable[[bytes], bytes], to: Path) -> Path:
    """A copy of a capture whose packet ``number`` has other data."""
    with open_capture(file) as reader, to.open("wb") as output:
        writer = PcapngWriter(output)
        for count, packet in enumerate(reader, 1):
            data = change(packet.data) if count == number else packet.data
            writer.write(CapturedPacket(packet.timestamp_ns, data, len(data), packet.interface))
    return to


def differences(run: Finished) -> dict[int, list[str]]:
    return {r["number"]: r["differences"] for r in run.of("answer") if r["differences"]}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_capture_of_our_own_gives_no_difference(start: Start, name: str) -> None:
    server = responder(start, GOLDEN[name])
    file = PCAPS / f"{name}.pcapng"
    run = played(file, address_of(server), "-t")
    assert run.code == 0, run.output
    with open_capture(file) as reader:
        (script,) = read_scripts(reader)
    (summary,) = run.of("summary")
    assert summary["requests"] == len(script.requests) > 0
    assert summary["answers"] == len(script.steps) - len(script.requests) > 0
    violations = server.of("violation")
    refused = {"permission": "permission", "ipv6": "permission", "lkey": None}
    cause = refused.get(name, name if name in ("bounds", "key", "pd") else None)
    assert [r["causes"] for r in violations] == ([[cause]] if cause else [])


def test_a_region_that_goes_away_in_the_middle(start: Start, tmp_path: Path) -> None:
    control = tmp_path / "control"
    server = responder(start, f"{RO} {RW} {GONE} --control {control}")
    with open_capture(PCAPS / "state.pcapng") as reader:
        (script,) = read_scripts(reader)

    def deregister(step: Step, _: object) -> None:
        if step.packet.number == 9:  # the WRITE that worked is acknowledged
            ask(control, "deregister", "gone")

    with OneShot(next_address(), address_of(server)) as shot:
        outcome = replay(script, shot, ReplayOptions(pace=Pace(top_speed=True)), deregister)
    assert outcome.differences == []
    assert outcome.sent == outcome.compared == 4
    assert server.wait_for("violation")["causes"] == ["state"]


@pytest.mark.parametrize(("name", "requests"), [("psn", 3), ("opcode", 2)])
def test_static(start: Start, name: str, requests: int) -> None:
    own = next_address()
    server = responder(
        start,
        f"--static --remote {own} --qpn 0x99 --psn 1 --remote-qpn 0x77 --remote-psn 0xfffffe "
        + STATIC_RW,
    )
    server.wait_for("qp_state", to="IBV_QPS_RTS")
    numbers = ("--static", "--qpn", "0x77", "--remote-qpn", "0x99", "--remote-psn", "0xfffffe")
    run = played(PCAPS / f"{name}.pcapng", address_of(server), "-t", *numbers, bind=own)
    assert run.code == 0, run.output
    assert run.of("summary")[0]["answers"] == requests


def test_other_keys_and_addresses_by_hand(start: Start) -> None:
    own = next_address()
    server = responder(
        start,
        f"--static --remote {own} --qpn 0x11 --psn 1000 --remote-qpn 0x12 --remote-psn 2000 "
        f"{RW}@0x7000000/0xabcd00",
    )
    server.wait_for("qp_state", to="IBV_QPS_RTS")
    file = PCAPS / "psn.pcapng"
    options = ("--static", "-t", "--map-rkey", "0x222200=0xabcd00", "--map-va", "0x20000=0x7000000")
    run = played(file, address_of(server), *options, bind=own)
    assert run.code == 0, run.output


def test_without_the_mapping_the_answers_are_others(start: Start) -> None:
    own = next_address()
    server = responder(
        start,
        f"--static --remote {own} --qpn 0x11 --psn 1000 --remote-qpn 0x12 --remote-psn 2000 "
        f"{RW}@0x7000000/0xabcd00",
    )
    server.wait_for("qp_state", to="IBV_QPS_RTS")
    run = played(
        PCAPS / "psn.pcapng", address_of(server), "--static", "-t", "--wait", "0.5", bind=own
    )
    assert run.code == 1
    assert differences(run)[2] == ["NAK Remote Access Error, captured ACK"]


def at(offset_from_end: int, value: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        where = len(data) - offset_from_end
        return data[:where] + value + data[where + len(value) :]

    return change


@pytest.mark.parametrize(
    ("number", "change", "problem"),
    [
        (9, at(8, b"\x61"), "NAK Remote Access Error, captured NAK Invalid Request"),
        (9, at(7, b"\0\0\7"), "MSN 2, captured 7"),
        (5, at(36, b"x"), "data at byte 0: "),
        (5, at(52, b"\x0d"), "opcode RC RDMA READ Response Only, captured RC RDMA READ Response"),
    ],
)
def test_a_changed_answer_is_reported(
    start: Start, tmp_path: Path, number: int, change: Callable[[bytes], bytes], problem: str
) -> None:
    file = changed(PCAPS / "permission.pcapng", number, change, tmp_path / "changed.pcapng")
    server = responder(start, GOLDEN["permission"])
    run = played(file, address_of(server), "-t")
    assert run.code == 1
    found = differences(run)
    assert list(found) == [number]
    assert any(text.startswith(problem) for text in found[number]), found


def test_an_answer_with_another_psn(start: Start, tmp_path: Path) -> None:
    def later(data: bytes) -> bytes:
        return at(12, (int.from_bytes(data[-12:-8], "big") + 1).to_bytes(4, "big"))(data)

    file = changed(PCAPS / "permission.pcapng", 9, later, tmp_path / "changed.pcapng")
    run = played(file, address_of(responder(start, GOLDEN["permission"])), "-t")
    assert run.code == 1
    assert differences(run) == {9: ["PSN 13459776, captured 13459777"]}


def test_an_answer_that_does_not_come_and_one_that_was_not_captured(
    start: Start, tmp_path: Path
) -> None:
    def other_direction(data: bytes) -> bytes:
        return data[:50] + bytes(4)  # too short for RoCE: the ACK is no packet any more

    file = changed(PCAPS / "cm.pcapng", 7, other_direction, tmp_path / "one-less.pcapng")
    run = played(file, address_of(responder(start, RW)), "-t")
    assert run.code == 1
    assert run.of("extra")[0]["differences"][0].startswith("not captured: RC Acknowledge")
    server = responder(start, "--recv 0")
    run = played(PCAPS / "cm.pcapng", address_of(server), "-t")
    assert run.code == 1
    assert any("RNR NAK" in text for text in differences(run)[5]), run.output


def test_loops_connect_anew_and_a_limit_ends(start: Start) -> None:
    server = responder(start, GOLDEN["permission"])
    run = played(PCAPS / "permission.pcapng", address_of(server), "-t", "-l", "3")
    assert run.code == 0, run.output
    assert run.of("summary")[0]["requests"] == 9
    assert len(server.of("connected")) == 3
    run = played(PCAPS / "permission.pcapng", address_of(server), "-t", "-L", "2")
    assert run.code == 0, run.output
    assert run.of("summary")[0]["requests"] == 2
    assert len(server.of("violation")) == 3


def test_pace() -> None:
    second = 1_000_000_000
    assert Pace().due(3 * second, 7) == 3
    assert Pace(multiplier=2).due(3 * second, 7) == 1.5
    assert Pace(packets_per_second=14).due(3 * second, 7) == 0.5
    assert Pace(top_speed=True).due(3 * second, 7) == 0


def test_text_names_packet_and_problem(start: Start, tmp_path: Path) -> None:
    file = changed(PCAPS / "permission.pcapng", 9, at(8, b"\x61"), tmp_path / "changed.pcapng")
    server = responder(start, GOLDEN["permission"])
    run = run_here("replay", "-r", str(file), address_of(server), "--bind", next_address(), "-t")
    assert run.output[0].startswith("packet 9  RC Acknowledge")
    assert run.output[1] == "    NAK Remote Access Error, captured NAK Invalid Request\n"
    assert run.errors == "3 requests sent, 3 answers compared: 1 differences\n"


def test_bad_input(tmp_path: Path) -> None:
    whole = (PCAPS / "permission.pcapng").read_bytes()
    (tmp_path / "text").write_text("no capture at all")
    (tmp_path / "cut").write_bytes(whole[: len(whole) - 50])
    (tmp_path / "cut.gz").write_bytes(gzip.compress(whole[: len(whole) - 50]))
    (tmp_path / "empty.pcapng").write_bytes(b"")
    with (tmp_path / "no-roce").open("wb") as file:
        PcapngWriter(file)
    for name in ("text", "cut", "cut.gz", "empty.pcapng", "no-roce", "missing"):
        run = run_here("replay", "-r", str(tmp_path / name), "127.0.0.1")
        assert run.code == 1, name
        assert run.errors.startswith("rocemu replay: "), run.errors
        assert name in run.errors
        assert run.errors.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-x 2 -t", "only one of"),
        ("-p 5 -x 2", "only one of"),
        ("--qpn 5", "only with --static"),
        ("--static --remote-psn 0x1000000", "allowed are 0 to 16777215"),
        ("--static --qpn 1", "allowed are 2 to"),
        ("--static -l 2", "for each loop"),
        ("--map-rkey 5", "OLD=NEW"),
        ("--map-rkey 5=0x100000000", "OLD=NEW"),
        ("--conversation 7", "there are 0"),
        ("--raw --map-va 1=2", "no mapping"),
    ],
)
def test_bad_usage(options: str, said: str) -> None:
    file = str(PCAPS / "permission.pcapng")
    run = run_here("replay", "-r", file, "127.0.0.1", *options.split())
    assert run.code == 2
    assert said in run.errors


def test_nobody_there() -> None:
    run = played(PCAPS / "permission.pcapng", next_address())
    assert run.code == 1
    assert "nobody listens" in run.errors


def test_raw_sends_the_payloads_as_they_are(start: Start, tmp_path: Path) -> None:
    own = next_address()
    capture = tmp_path / "server.pcapng"
    server = responder(
        start,
        f"--static --remote {own} --qpn 0x11 --psn 1000 --remote-qpn 0x12 --remote-psn 2000 "
        f"--icrc ignore --capture {capture} {STATIC_RW}",
    )
    server.wait_for("qp_state", to="IBV_QPS_RTS")
    run = played(PCAPS / "psn.pcapng", address_of(server), "--raw", "-t", bind=own)
    assert run.code == 0, run.output
    assert server.stop() == 0
    payloads = []
    for file in (PCAPS / "psn.pcapng", capture):
        with open_capture(file) as reader:
            payloads.append([p.data[42:] for p in reader][::2])
    assert payloads[0] == payloads[1]
    assert len(payloads[0]) == 3


def test_json_is_one_object_a_packet(start: Start) -> None:
    run = played(PCAPS / "read.pcapng", address_of(responder(start, RO)), "-t")
    events = [json.loads(line)["event"] for line in run.output]
    assert events == ["request", "answer", "answer", "answer", "summary"]
