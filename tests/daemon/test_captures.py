"""What daemons write with --capture, read by tshark and by scapy's own RoCE layer."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP

from rocemu.capture import Direction, open_capture
from rocemu.wire import BTH, RETH, Flow, Packet, build, seal
from tests.daemon.processes import PATIENCE, Start, address_of, requester, responder, run
from tests.judges import contrib_icrc
from tests.net.pair import next_address, stranger

STORY = ("write rw+0 'a longer hello'", "read rw+0 14", "fetch-add rw+16 1", "write ro+0 hello")


def tshark(capture: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["tshark", "-r", str(capture), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def fields(capture: Path, show: str, *names: str) -> list[list[str]]:
    """One row a packet that the display filter shows."""
    words = [word for name in names for word in ("-e", name)]
    lines = tshark(capture, "-Y", show, "-T", "fields", *words).splitlines()
    return [line.split("\t") for line in lines]


def scapy_icrc_is_right(frame: bytes) -> bool:
    """Judged by scapy.contrib.roce over the IP header as it stands in the capture."""
    return contrib_icrc(frame[14:]) == frame[-4:]


@pytest.mark.needs_tshark
def test_the_story_in_wireshark(start: Start, tmp_path: Path) -> None:
    """Both ends' captures: the NAK by name and number, and nothing malformed."""
    captures = [tmp_path / "responder.pcapng", tmp_path / "requester.pcapng"]
    server = responder(start, "--capture", str(captures[0]))
    client = requester(start, server, *STORY, "--capture", str(captures[1]))
    assert client.finish() == 1
    server.wait_for("disconnected")
    assert server.stop() == 0
    address, own = address_of(server), client.of("connected")[0]["peer"]
    assert own == address
    for capture in captures:
        opcodes = [row[0] for row in fields(capture, "infiniband", "infiniband.bth.opcode")]
        assert [int(opcode, 0) for opcode in opcodes] == [
            *(0x64, 0x64, 0x64),
            *(0x0A, 0x11, 0x0C, 0x10, 0x14, 0x12, 0x0A, 0x11),
            *(0x64, 0x64),
        ]
        naks = fields(capture, "infiniband.aeth.syndrome == 0x62", "ip.src", "_ws.col.Info")
        assert len(naks) == 1
        assert naks[0][0] == address
        assert "[Remote Access Error]" in naks[0][1]
        assert fields(capture, "_ws.malformed", "frame.number") == []
        assert fields(capture, "udp.dstport != 4791", "frame.number") == []
        for show in ("ConnectRequest", "ConnectReply", "ReadyToUse", "DisconnectRequest"):
            assert f"CM: {show}" in tshark(capture)


@pytest.mark.needs_tshark
def test_a_refused_packet_carries_a_comment(start: Start, tmp_path: Path) -> None:
    capture = tmp_path / "r.pcapng"
    server = responder(start, "--capture", str(capture))
    assert run(server, "read rw+0 4", "write ro+4090 'far too long'").code == 1
    server.wait_for("disconnected")
    assert server.stop() == 0
    rows = fields(capture, "frame.comment", "infiniband.bth.opcode", "frame.comment")
    assert len(rows) == 1
    assert int(rows[0][0], 0) == 0x0A
    assert rows[0][1].startswith("permission: remote_write not in remote_read; bounds: ")


def test_the_icrc_in_the_capture(start: Start, tmp_path: Path) -> None:
    """Right by another's reckoning, on both sides, both directions, all packets."""
    captures = [tmp_path / "responder.pcapng", tmp_path / "requester.pcapng"]
    server = responder(start, "--capture", str(captures[0]))
    client = requester(start, server, *STORY, "--capture", str(captures[1]))
    assert client.finish() == 1
    server.wait_for("disconnected")
    assert server.stop() == 0
    kept = []
    for capture in captures:
        with open_capture(capture) as reader:
            packets = list(reader)
            assert reader.damage is None
        assert len(packets) == 13
        for packet in packets:
            assert scapy_icrc_is_right(packet.data)
        kept.append(packets)
    for one, other in zip(*kept, strict=True):
        assert one.data == other.data, "both ends saw the same"
        assert {one.direction, other.direction} == {Direction.IN, Direction.OUT}


async def test_a_bad_icrc_stays_bad(start: Start, tmp_path: Path) -> None:
    """And what was dropped says so; a right one from elsewhere has its solved IP ID."""
    capture = tmp_path / "r.pcapng"
    server = responder(start, "--capture", str(capture))
    async with stranger(address_of(server)) as peer:
        body = build(Packet(BTH(0x0A, 0x999, 0), b"0123", reth=RETH(0, 0, 4)))
        right = seal(body, peer.flow)
        peer.send(right[:-1] + bytes([right[-1] ^ 1]))
        peer.send(seal(body, peer.flow, ip_id=0xBEEF))
        peer.send(b"short")
        server.wait_for("drop", 3)
    assert [r["reason"] for r in server.of("drop")] == ["icrc", "qpn", "short"]
    dropped = server.of("drop")[0]
    assert dropped["source"] == peer.address
    assert dropped["opcode"] == "RC RDMA WRITE Only"
    assert dropped["qp_num"] == 0x999
    assert "opcode" not in server.of("drop")[2], "five bytes hold none"
    assert server.stop() == 0
    with open_capture(capture) as reader:
        bad, solved, short = reader
    assert bad.data[42:] == right[:-1] + bytes([right[-1] ^ 1])
    assert not scapy_icrc_is_right(bad.data)
    assert bad.comments == ("dropped: icrc: the ICRC is wrong",)
    assert int.from_bytes(solved.data[18:20], "big") == 0xBEEF
    assert scapy_icrc_is_right(solved.data)
    assert short.data[42:47] == b"short"
    assert short.comments[0].startswith("dropped: short: 5 bytes")


@pytest.mark.needs_tshark
@pytest.mark.parametrize("name", ["responder", "requester"])
def test_a_capture_on_standard_output(start: Start, name: str) -> None:
    """``rocemu ... --capture - | tshark -r -``: the events go to standard error then."""
    address, own = next_address(), next_address()
    words = ["responder", "--bind", address, "--mr", "rw:64:local_write,remote_write,remote_read"]
    if name == "requester":
        server = start(*words, "--json")
        server.wait_for("listening")
        words = ["requester", "--bind", own, address, "write rw+0 hello", "read rw+0 5"]
    rocemu = subprocess.Popen(
        [sys.executable, "-m", "rocemu", *words, "--json", "--capture", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert rocemu.stdout is not None
        assert rocemu.stderr is not None
        judge = subprocess.Popen(
            ["tshark", "-r", "-", "-T", "fields", "-e", "infiniband.bth.opcode"],
            stdin=rocemu.stdout,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        rocemu.stdout.close()
        if name == "responder":
            assert json.loads(rocemu.stderr.readline())["event"] == "listening"
            assert run(address, "write rw+0 hello", "read rw+0 5").code == 0
            rocemu.send_signal(signal.SIGTERM)
        events = [json.loads(line)["event"] for line in rocemu.stderr]
        rocemu.stderr.close()
        assert rocemu.wait(30) == 0
        opcodes, _ = judge.communicate(timeout=60)
    finally:
        rocemu.kill()
        rocemu.wait()
    assert "connected" in events
    assert [int(line, 0) for line in opcodes.split()] == [
        *(0x64, 0x64, 0x64, 0x0A, 0x11, 0x0C, 0x10, 0x64, 0x64)
    ]


def test_a_capture_whose_reader_goes_away(start: Start) -> None:
    """The capture ends, the daemon does not."""
    read, write = os.pipe()
    os.close(read)
    address = next_address()
    rocemu = subprocess.Popen(
        [
            *(sys.executable, "-m", "rocemu", "responder", "--bind", address, "--json"),
            *("--mr", "r:64:remote_read", "--capture", "-"),
        ],
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    try:
        assert rocemu.stderr is not None
        first = [json.loads(rocemu.stderr.readline()) for _ in range(2)]
        assert [r["event"] for r in first] == ["trouble", "listening"]
        assert first[0]["detail"] == "the capture ends here: Broken pipe"
        assert run(address, "read r+0 8").code == 0
        rocemu.send_signal(signal.SIGTERM)
        assert rocemu.wait(30) == 0
        rocemu.stderr.close()
    finally:
        rocemu.kill()
        rocemu.wait()


def test_a_capture_on_a_full_disk(start: Start) -> None:
    server = responder(start, "--capture", "/dev/full")
    assert server.of("trouble")[0]["detail"] == "the capture ends here: No space left on device"
    assert run(server, "read rw+0 8").code == 0
    assert server.stop() == 0


def test_a_capture_that_cannot_be_made(tmp_path: Path) -> None:
    finished = run(next_address(), "--capture", str(tmp_path / "nowhere" / "x.pcapng"))
    assert finished.code == 1
    assert finished.errors == (
        f"rocemu requester: No such file or directory: {tmp_path / 'nowhere' / 'x.pcapng'}\n"
    )


def test_the_capture_can_be_read_while_it_is_written(start: Start, tmp_path: Path) -> None:
    """It is flushed after every batch, and never ends in the middle of a packet."""
    capture = tmp_path / "r.pcapng"
    server = responder(start, "--capture", str(capture))
    own = str(tmp_path / "own")
    requester(start, server, "write rw+0 hello", "--daemon", "--control", own)
    server.wait_for("connected")
    count, deadline = 0, time.monotonic() + PATIENCE
    while count < 5:
        assert time.monotonic() < deadline, f"{count} of 5 packets"
        with open_capture(capture) as reader:
            count = len(list(reader))
            assert reader.damage is None


def test_the_flow_of_a_capture_is_the_sockets(start: Start, tmp_path: Path) -> None:
    """True addresses and ports: the source port is the one that the packets left from."""
    capture = tmp_path / "r.pcapng"
    server = responder(start, "--capture", str(capture))
    client = requester(start, server, "write rw+0 hello")
    assert client.finish() == 0
    assert server.stop() == 0
    with open_capture(capture) as reader:
        write = next(p for p in reader if p.data[42] == 0x0A)
    packet = IP(write.data[14:])
    assert packet.dst == address_of(server)
    assert 0xC000 <= packet[UDP].sport <= 0xFFFF
    assert (
        seal(write.data[42:-4], Flow(packet.src, packet.dst, packet[UDP].sport))
        == (write.data[42:])
    )
