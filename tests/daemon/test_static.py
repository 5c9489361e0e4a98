"""Static mode: two processes whose connection is what their command lines say."""

import re
import signal
from pathlib import Path

from rocemu.capture import open_capture
from rocemu.wire import CmReq, parse_mad
from tests.daemon.processes import RO, RW, Command, Finished, Start, address_of, ask, run_here
from tests.net.pair import next_address

FIXED = "rw:4096:local_write,remote_write,remote_read@0x10000/0x1234"


def static_responder(start: Start, peer: str, *arguments: str, psn: int = 0x100) -> Command:
    server = start(
        *("responder", "--json", "--static", "--bind", next_address(), "--remote", peer),
        *("--qpn", "0x11", "--psn", str(psn), "--remote-qpn", "0x22", "--remote-psn", "0x200"),
        *arguments,
    )
    server.wait_for("listening")
    server.wait_for("qp_state", to="IBV_QPS_RTS")
    return server


def static_requester(own: str, server: Command, *arguments: str) -> Finished:
    return run_here(
        *("requester", "--json", "--static", "--bind", own, address_of(server)),
        *("--qpn", "0x22", "--psn", "0x200", "--remote-qpn", "0x11", "--remote-psn", "0x100"),
        *arguments,
    )


def test_both_ways(start: Start) -> None:
    own = next_address()
    server = static_responder(start, own, "--mr", FIXED)
    client = static_requester(
        own,
        server,
        "write @0x10000/0x1234 'no CM at all'",
        "read @0x10000/0x1234 12",
        "send 0123456789abcdef",
    )
    assert client.code == 0, client.errors
    assert bytes.fromhex(client.of("completion")[1]["data"]) == b"no CM at all"
    received = server.wait_for("completion")
    assert bytes.fromhex(received["data"]) == b"0123456789abcdef"
    ends = {r["side"]: r for r in client.of("endpoint")}
    assert (ends["local"]["qp_num"], ends["local"]["psn"]) == (0x22, 0x200)
    assert (ends["remote"]["qp_num"], ends["remote"]["psn"]) == (0x11, 0x100)
    for end in server.of("endpoint"):
        other = ends["remote" if end["side"] == "local" else "local"]
        for field in ("qp_num", "psn", "gid"):
            assert end[field] == other[field]
    assert server.stop() == 0


def test_a_refused_access(start: Start) -> None:
    own = next_address()
    server = static_responder(start, own, "--mr", "ro:4096:remote_read@0x20000/0xabcd00")
    client = static_requester(
        own, server, "write @0x20000/0xabcd00 hello", "--expect", "REM_ACCESS_ERR"
    )
    assert client.code == 0, client.errors
    assert server.wait_for("violation")["causes"] == ["permission"]
    assert server.wait_for("async")["type"] == "IBV_EVENT_QP_ACCESS_ERR"


def test_the_lines_that_perftest_users_know(start: Start) -> None:
    own = next_address()
    server = start(
        *("responder", "--static", "--bind", next_address(), "--remote", own, "--mr", RW),
        *("--qpn", "0x11", "--psn", "0x100", "--remote-qpn", "0x22", "--remote-psn", "0xabcdef"),
        *("--capture", "/dev/null"),
    )
    pattern = (
        r"  (local|remote) address:  LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID (.+)\n"
    )
    with server._news:
        assert server._news.wait_for(
            lambda: sum(bool(re.fullmatch(pattern, line)) for line in server.output) == 2, 30
        ), server.output
    text = "".join(server.output)
    assert f"QPN 0x000022, PSN 0xabcdef, GID ::ffff:{own}\n" in text
    assert server.stop() == 0


def test_fixed_numbers_make_the_same_bytes(start: Start, tmp_path: Path) -> None:
    """Reproducible vectors: addresses, ports, QPNs, PSNs and keys, so every byte after the MACs."""
    own, bind = next_address(), next_address()
    captures = []
    for run in range(2):
        server = start(
            *("responder", "--json", "--static", "--bind", bind, "--remote", own, "--mr", FIXED),
            *("--qpn", "17", "--psn", "256", "--remote-qpn", "34", "--remote-psn", "512"),
            *("--capture", str(tmp_path / f"{run}.pcapng")),
        )
        server.wait_for("listening")
        client = static_requester(
            own, server, "write @0x10000/0x1234 reproducible", "read @0x10000/0x1234 12"
        )
        assert client.code == 0, client.errors
        assert server.stop() == 0
        with open_capture(tmp_path / f"{run}.pcapng") as packets:
            captures.append([packet.data for packet in packets])
    assert len(captures[0]) == 4
    assert captures[0] == captures[1]
    write = captures[0][0][14 + 28 :]
    assert write[:12].hex() == "0a00ffff" + "00000011" + "80000200"
    assert write[12:28].hex() == "0000000000010000" + "00001234" + "0000000c"


def test_a_seed_makes_the_connection_manager_repeat(start: Start, tmp_path: Path) -> None:
    seen = []
    own, bind = next_address(), next_address()
    for run in range(2):
        capture = tmp_path / f"{run}.pcapng"
        server = start("responder", "--json", "--bind", bind, "--mr", RO, "--seed", "7")
        server.wait_for("listening")
        client = run_here(
            *("requester", "--json", "--bind", own, bind, "--seed", "8", "--capture", str(capture))
        )
        assert client.code == 0, client.errors
        assert server.stop(signal.SIGINT) == 0
        with open_capture(capture) as packets:
            messages = [parse_mad(packet.data[14 + 28 + 20 : -4]) for packet in packets]
        assert isinstance(messages[0], CmReq)
        seen.append([(m.transaction_id, getattr(m, "starting_psn", 0)) for m in messages])
    assert seen[0] == seen[1]


def test_a_psn_ahead_of_what_is_expected(start: Start) -> None:
    """A sequence NAK, again and again; the requester gives up in bounded time."""
    client = _with_psn(start, "0x201", "--timeout", "12")
    assert client.code == 1
    assert client.of("completion")[0]["status"] == "IBV_WC_RETRY_EXC_ERR"


def test_a_psn_behind_what_is_expected(start: Start, tmp_path: Path) -> None:
    """A duplicate: acknowledged, and not executed."""
    control = str(tmp_path / "ctl")
    assert _with_psn(start, "0x1ff", control=control).code == 0
    assert ask(control, "memory", "rw", "4")[0]["data"] == "00000000"


def _with_psn(start: Start, psn: str, *arguments: str, control: str = "") -> Finished:
    own = next_address()
    more = ("--control", control) if control else ()
    server = static_responder(start, own, "--mr", FIXED, *more)
    return run_here(
        *("requester", "--json", "--static", "--bind", own, address_of(server)),
        *("--qpn", "0x22", "--psn", psn, "--remote-qpn", "0x11", "--remote-psn", "0x100"),
        *arguments,
        "write @0x10000/0x1234 lost",
    )
