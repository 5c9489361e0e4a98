"""Two network namespaces joined by a veth pair, and tcpdump: what is really on the wire."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocemu.capture import open_capture
from rocemu.wire import icrc_of_ip
from tests.daemon.processes import RO, RW, Command, Start, ask
from tests.daemon.test_captures import fields, scapy_icrc_is_right

pytestmark = [pytest.mark.needs_root]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@dataclass
class Wire:
    """Two namespaces; ``a`` is the responder's."""

    a: str
    b: str

    def prefix(self, side: str) -> list[str]:
        return ["ip", "netns", "exec", getattr(self, side)]

    @contextlib.contextmanager
    def tapped(self, path: Path) -> Iterator[None]:
        """tcpdump on the responder's end; everything is in the file afterwards."""
        dump = subprocess.Popen(
            [
                *self.prefix("a"),
                *("tcpdump", "-i", "veth0", "--immediate-mode", "-U", "-Z", "root"),
                *("-w", str(path), "udp", "port", "4791"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert dump.stderr is not None
            assert "listening on veth0" in dump.stderr.readline()
            yield
        finally:
            dump.terminate()
            dump.wait(30)
            dump.stderr.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    """10.91.0.1 and fd91::1 on the one side, .2 and ::2 on the other, MTU 1500."""
    names = [f"rocemu-{side}-{os.getpid()}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            *("link", "add", "veth0", "netns", names[0], "type", "veth"),
            *("peer", "name", "veth0", "netns", names[1]),
        )
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.91.0.{number}/24", "dev", "veth0")
            ip("-n", name, "addr", "add", f"fd91::{number}/64", "dev", "veth0", "nodad")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "veth0", "up")
        yield Wire(*names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def start_responder(start: Start, wire: Wire, address: str, *arguments: str) -> Command:
    server = start(
        *("responder", "--json", "--bind", address, "--mr", RO, "--mr", RW, *arguments),
        prefix=wire.prefix("a"),
    )
    server.wait_for("listening")
    return server


def run_requester(start: Start, wire: Wire, own: str, to: str, *arguments: str) -> Command:
    client = start("requester", "--json", "--bind", own, to, *arguments, prefix=wire.prefix("b"))
    client.finish()
    return client


STORY = (
    "write rw+0 'a longer hello'",
    "write rw+0 <src+0:5000",
    "read rw+0 5000 >src+0",
    "send 'sixteen bytes ok'",
    "fetch-add rw+8 1",
    "write ro+0 'this is refused'",
)


@pytest.mark.needs_tshark
@pytest.mark.parametrize(("a", "b"), [("10.91.0.1", "10.91.0.2"), ("fd91::1", "fd91::2")])
def test_the_story_on_a_wire(start: Start, wire: Wire, tmp_path: Path, a: str, b: str) -> None:
    dump, own = tmp_path / "tcpdump.pcap", tmp_path / "own.pcapng"
    with wire.tapped(dump):
        server = start_responder(start, wire, a, "--capture", str(own))
        client = run_requester(start, wire, b, a, "--mr", "src:8K:local_write", *STORY)
        assert client.code == 1, client.errors
        server.wait_for("disconnected")
        assert server.stop() == 0
        with open_capture(own) as reader:
            told = [packet.data for packet in reader]
        assert len(told) == 25
        seen = wait_for_packets(dump, len(told))
    statuses = [r["status"].removeprefix("IBV_WC_") for r in client.of("completion")]
    assert statuses == ["SUCCESS"] * 5 + ["REM_ACCESS_ERR"]
    assert client.of("connected")[0]["path_mtu"] == 1024, "what MTU 1500 has room for"

    for frame in seen:
        assert icrc_of_ip(frame[14:-4]).to_bytes(4, "little") == frame[-4:]
        if ":" not in a:
            assert scapy_icrc_is_right(frame)
            assert frame[18:22].hex() == "00004000", "IP ID 0, DF"
    # The kernel's flow label and UDP checksum (IPv6) are all that an endpoint does not know.
    known = slice(18, 58) if ":" in a else slice(14, None)
    for own_frame, frame in zip(told, seen, strict=True):
        assert own_frame[known] == frame[known]
        assert own_frame[62 if ":" in a else 42 :] == frame[62 if ":" in a else 42 :]

    family = "ipv6" if ":" in a else "ip"
    naks = fields(dump, "infiniband.aeth.syndrome == 0x62", f"{family}.src", "_ws.col.Info")
    assert len(naks) == 1
    assert naks[0][0] == a
    assert "[Remote Access Error]" in naks[0][1]
    assert fields(dump, "_ws.malformed", "frame.number") == []


def wait_for_packets(dump: Path, count: int) -> list[bytes]:
    """tcpdump writes each packet as it sees it; wait until it has seen that many."""
    deadline = time.monotonic() + 30
    frames: list[bytes] = []
    while len(frames) < count and time.monotonic() < deadline:
        time.sleep(0.01)
        with open_capture(dump) as reader:
            frames = [packet.data for packet in reader]
    return frames


def test_a_path_mtu_that_the_link_does_not_take(start: Start, wire: Wire) -> None:
    server = start_responder(start, wire, "10.91.0.1")
    client = run_requester(start, wire, "10.91.0.2", "10.91.0.1", "--mtu", "2048", "read rw+0 1")
    assert client.code == 1
    assert client.errors == (
        "rocemu requester: path MTU 2048 is too much for the way to 10.91.0.1: 1024 is the most\n"
    )
    assert server.of("connected") == []
    assert run_requester(start, wire, "10.91.0.2", "10.91.0.1", "--mtu", "512").code == 0


def test_a_peer_whose_link_takes_more(start: Start, wire: Wire) -> None:
    """A REQ for a path MTU that our own link does not take is rejected, by its reason."""
    ip("-n", wire.b, "link", "set", "veth0", "mtu", "9000")
    server = start_responder(start, wire, "10.91.0.1")
    client = run_requester(start, wire, "10.91.0.2", "10.91.0.1", "--mtu", "4096")
    assert client.code == 1
    assert client.errors == (
        "rocemu requester: 10.91.0.1 rejects the connection to port 18515: reason 26, invalid mtu\n"
    )
    assert server.of("connected") == []


def test_packets_too_long_for_the_link_are_told_once(
    start: Start, wire: Wire, tmp_path: Path
) -> None:
    """The link shrinks under a connection: every try fails, one sentence says so."""
    start_responder(start, wire, "10.91.0.1")
    own = str(tmp_path / "own")
    client = start(
        *("requester", "--json", "--bind", "10.91.0.2", "10.91.0.1", "--mr", "src:4K:none"),
        *("--timeout", "16", "--retry-count", "3", "--daemon", "--control", own),
        prefix=wire.prefix("b"),
    )
    client.wait_for("connected")
    ip("-n", wire.b, "link", "set", "veth0", "mtu", "600")
    assert ask(own, "post", "write rw+0 <src+0:256")[0]["status"] == "IBV_WC_SUCCESS"
    (answer,) = ask(own, "post", "write rw+0 <src+0:1024")
    assert answer["status"] == "IBV_WC_RETRY_EXC_ERR"
    assert ask(own, "counters")[0]["send_error"] == 4
    client.wait_for("trouble")
    assert [r["detail"] for r in client.of("trouble")] == [
        "cannot send 1056 bytes to 10.91.0.1: Message too long; "
        "the path MTU is larger than the link's MTU has room for"
    ]


def test_a_host_without_a_way(start: Start, wire: Wire) -> None:
    client = run_requester(start, wire, "10.91.0.2", "192.168.77.1")
    assert client.code == 1
    assert client.errors == (
        "rocemu requester: no way from 10.91.0.2 to 192.168.77.1: Network is unreachable\n"
    )
