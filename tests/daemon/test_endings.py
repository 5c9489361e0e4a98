"""How daemons end: by signal at any moment, by a peer that is gone, by a port that is taken."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocemu.capture import open_capture
from rocemu.wire import ROCE_PORT
from tests.daemon.processes import Start, address_of, ask, requester, responder, run, run_here
from tests.net.pair import next_address

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@contextlib.contextmanager
def silent_peer() -> Iterator[str]:
    """An address where UDP 4791 is open and nobody ever answers."""
    address = next_address()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((address, ROCE_PORT))
        yield address


def packets_in(capture: Path) -> int:
    """Packets of a capture that ends as a capture should."""
    with open_capture(capture) as packets:
        count = sum(1 for _ in packets)
        assert packets.damage is None
    return count


@pytest.mark.parametrize("number", SIGNALS)
def test_a_responder_ends_by_signal(start: Start, tmp_path: Path, number: int) -> None:
    """With a connection open: the peer is told, the capture is whole, the port is free."""
    capture = tmp_path / "r.pcapng"
    server = responder(start, "--capture", str(capture))
    own = str(tmp_path / "own")
    client = requester(start, server, "write rw+0 hello", "--daemon", "--control", own)
    client.wait_for("completion")
    assert server.stop(number) == 0
    assert server.errors == ""
    client.wait_for("qp_state", to="IBV_QPS_ERR")
    assert packets_in(capture) == 7, "REQ REP RTU WRITE ACK DREQ DREP"
    assert start("responder", "--bind", address_of(server), "--json").wait_for("listening")
    assert client.stop() == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_a_requester_ends_while_it_connects(start: Start, tmp_path: Path, number: int) -> None:
    with silent_peer() as address:
        client = requester(start, address, "--capture", str(tmp_path / "q.pcapng"), "read rw+0 1")
        client.wait_for("qp_state", to="IBV_QPS_INIT")
        assert client.stop(number) == 0
        assert client.errors == ""
    assert packets_in(tmp_path / "q.pcapng") >= 2, "REQ, and a REJ that takes it back"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_requester_ends_between_operations(start: Start, tmp_path: Path, number: int) -> None:
    """A long list is under way; one retried for ever stands at its end."""
    server = responder(start, "--recv", "0")
    capture = tmp_path / "q.pcapng"
    client = requester(
        start,
        server,
        *("--capture", str(capture), "--rnr-retry", "7"),
        *(f"write rw+{i} x" for i in range(50)),
        "send 0123456789abcdef",
    )
    client.wait_for("completion", 20)
    assert client.stop(number) == 0
    assert client.errors == ""
    assert packets_in(capture) > 40
    assert server.wait_for("disconnected")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_requester_ends_while_it_waits_for_more(
    start: Start, tmp_path: Path, number: int
) -> None:
    server = responder(start)
    control = tmp_path / "own"
    client = requester(start, server, "--daemon", "--control", str(control))
    client.wait_for("connected")
    assert client.stop(number) == 0
    assert not control.exists()
    assert server.wait_for("disconnected")


def test_a_responder_that_is_killed_is_noticed_at_once(start: Start, tmp_path: Path) -> None:
    """By the ICMP error that the next packet draws: it is sent once."""
    capture, own = tmp_path / "q.pcapng", str(tmp_path / "own")
    server = responder(start)
    client = requester(start, server, "--daemon", "--control", own, "--capture", str(capture))
    client.wait_for("connected")
    before = packets_in(capture)
    server.kill()
    (answer,) = ask(own, "post", "write rw+0 hello")
    assert answer["status"] == "IBV_WC_RETRY_EXC_ERR"
    assert answer["vendor_err"] != 0
    assert packets_in(capture) == before + 1
    assert client.stop() == 0


def test_nobody_at_the_address(tmp_path: Path) -> None:
    nobody, capture = next_address(), tmp_path / "q.pcapng"
    client = run(nobody, "--capture", str(capture), "read rw+0 1")
    assert client.code == 1
    assert client.errors == f"rocemu requester: nobody listens on UDP 4791 at {nobody}\n"
    assert packets_in(capture) == 1, "one REQ"


def test_nobody_on_the_cm_port(start: Start) -> None:
    server = responder(start, "--port", "2000")
    client = run(server, "--port", "2001")
    assert client.code == 1
    sentence = "rejects the connection: nobody listens on CM port 2001 there"
    assert client.errors == f"rocemu requester: {address_of(server)} {sentence}\n"
    assert run(server, "--port", "2000").code == 0


def test_a_peer_that_never_answers(tmp_path: Path) -> None:
    """Eight REQs, then a sentence; that takes a few seconds."""
    capture = tmp_path / "q.pcapng"
    with silent_peer() as address:
        client = run(address, "--capture", str(capture))
        assert client.code == 1
    assert client.errors == (
        f"rocemu requester: no answer from {address} port 18515 after 8 tries\n"
    )
    assert packets_in(capture) == 9, "and a REJ at last"


def test_a_static_peer_that_never_answers(tmp_path: Path) -> None:
    capture = tmp_path / "q.pcapng"
    with silent_peer() as address:
        client = run(
            address,
            *("--static", "--remote-qpn", "0x11", "--remote-psn", "0", "--psn", "0"),
            *("--timeout", "10", "--retry-count", "3", "--capture", str(capture)),
            *("write @0x1000/0x1234 hello", "--expect", "RETRY_EXC_ERR"),
        )
        assert client.code == 0, client.errors
    assert packets_in(capture) == 4, "one try and three retries"


def test_the_port_is_taken(start: Start, tmp_path: Path) -> None:
    """And the second daemon does not touch the capture of the first."""
    capture = tmp_path / "r.pcapng"
    first = responder(start, "--capture", str(capture))
    assert run(first, "read rw+0 1").code == 0
    before = packets_in(capture)
    assert before >= 5
    second = run_here("responder", "--bind", address_of(first), "--capture", str(capture))
    assert second.code == 1
    assert second.errors == (
        f"rocemu responder: UDP port 4791 of {address_of(first)} is in use, by another rocemu or "
        "by the kernel's rdma_rxe\n"
    )
    assert packets_in(capture) >= before


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("203.0.113.1", "UDP port 4791 of 203.0.113.1 cannot be bound: the address is not one of"),
        ("0.0.0.0", "0.0.0.0 is no address to bind: the ICRC covers it, name one of this host"),
        ("no such host", "'no such host' has no IPv4 address"),
    ],
)
def test_an_address_that_is_not_ours(address: str, sentence: str) -> None:
    command = run_here("responder", "--bind", address)
    assert command.code == 1
    assert command.errors.startswith(f"rocemu responder: {sentence}")
    assert command.errors.count("\n") == 1


def test_a_path_mtu_that_the_link_does_not_take(start: Start) -> None:
    """Loopback takes all; what does not fit is judged before anything is sent."""
    server = responder(start)
    client = run(server, "--mtu", "256", "write rw+0 hello")
    assert client.code == 0
    assert client.of("connected")[0]["path_mtu"] == 256


@pytest.mark.parametrize("json", [True, False])
def test_a_reader_that_goes_away(json: bool) -> None:
    """``rocemu responder | head -1``: the daemon goes on, and ends in peace."""
    words = [sys.executable, "-m", "rocemu", "responder", "--bind", next_address()]
    command = subprocess.Popen(
        [*words, "--mr", "rw:64:remote_read", *(["--json"] if json else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert command.stdout is not None
        assert b"listening" in command.stdout.readline()
        command.stdout.close()
        client = run(words[-1], "read rw+0 8")
        assert client.code == 0
        command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 0
        assert command.stderr is not None
        assert command.stderr.read() == b""
        command.stderr.close()
    finally:
        command.kill()
        command.wait()


def test_output_to_a_full_disk() -> None:
    address = next_address()
    with open("/dev/full", "w") as full:
        command = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rocemu",
                "responder",
                "--bind",
                address,
                "--mr",
                "r:8:remote_read",
            ],
            stdout=full,
            stderr=subprocess.PIPE,
        )
    try:
        for _ in range(100):
            client = run(address, "read r+0 8")
            if client.code == 0:
                break  # else it did not listen yet
        assert client.of("completion")
        command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 0
        assert command.stderr is not None
        command.stderr.close()
    finally:
        command.kill()
        command.wait()


def test_nothing_is_left_open(start: Start, tmp_path: Path) -> None:
    """Many connections one after the other, and as many descriptors as before."""
    server = responder(start, "--control", str(tmp_path / "ctl"))

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    for _ in range(2):
        assert run(server, "write rw+0 x", "write ro+0 x").code == 1
    server.wait_for("disconnected", 2)
    before = descriptors()
    for _ in range(3):
        assert run(server, "write rw+0 x", "write ro+0 x").code == 1
    server.wait_for("disconnected", 5)
    assert descriptors() <= before + 3, "a socket for each new source port, up to a limit"
    assert [r["object"] for r in ask(tmp_path / "ctl", "state")] == ["mr", "mr"]
