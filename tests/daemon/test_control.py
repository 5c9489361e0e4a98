"""The control socket: what ``rocemu ctl`` asks and tells, and who may."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rocemu.daemon.control import ControlError
from tests.daemon.processes import Command, Start, ask, requester, responder, run, run_here


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "control")


def ctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rocemu", "ctl", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def idle_requester(start: Start, server: Command, path: str, *arguments: str) -> Command:
    """One that stays for its control socket."""
    client = requester(start, server, "--daemon", "--control", path, *arguments)
    client.wait_for("connected")
    return client


def test_only_the_owner_may_use_it(start: Start, path: str) -> None:
    responder(start, "--control", path)
    status = os.stat(path)
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600


def test_state_of_queue_pairs_and_regions(start: Start, path: str, tmp_path: Path) -> None:
    server = responder(start, "--control", path)
    assert [r["object"] for r in ask(path, "state")] == ["mr", "mr"]
    client = idle_requester(start, server, str(tmp_path / "own"), "write rw+0 hello")
    client.wait_for("completion")
    connected = server.wait_for("connected")
    qp, *regions = ask(path, "state")
    assert qp["object"] == "qp"
    assert qp["state"] == "IBV_QPS_RTS"
    assert qp["qp_num"] == connected["qp_num"]
    assert qp["peer"] == connected["peer"]
    assert qp["path_mtu"] == 4096
    assert qp["receives"] == 4
    assert [r["name"] for r in regions] == ["ro", "rw"]
    for region in regions:
        assert region["lkey"] != region["rkey"]
        assert region["length"] in (4096, 65536)
    (own,) = ask(tmp_path / "own", "state")
    assert (own["qp_num"], own["remote_qp_num"]) == (qp["remote_qp_num"], qp["qp_num"])
    assert own["sq_psn"] == qp["rq_psn"], "nothing is under way"


def test_counters(start: Start, path: str, tmp_path: Path) -> None:
    server = responder(start, "--control", path)
    client = idle_requester(start, server, str(tmp_path / "own"), "write rw+0 hello", "read rw+0 5")
    client.wait_for("completion", 2)
    packets, cm, mpt = ask(path, "counters")
    assert packets == {"object": "packets", "received": 4, "icrc_known_id": 4}, "REQ RTU WRITE READ"
    assert cm["object"] == "cm"
    assert mpt["object"] == "mpt"
    assert mpt["cache_hits"] + mpt["cache_misses"] >= 2


def test_operations_on_demand(start: Start, path: str) -> None:
    server = responder(start)
    client = idle_requester(start, server, path)
    (wrote,) = ask(path, "post", "write rw+0 'on demand'")
    assert wrote["status"] == "IBV_WC_SUCCESS"
    (read,) = ask(path, "post", "read rw+0 9")
    assert bytes.fromhex(read["data"]) == b"on demand"
    (refused,) = ask(path, "post", "write ro+0 no")
    assert refused["status"] == "IBV_WC_REM_ACCESS_ERR"
    (flushed,) = ask(path, "post", "read rw+0 9")
    assert flushed["status"] == "IBV_WC_WR_FLUSH_ERR"
    for record in (wrote, read, refused, flushed):
        assert record.pop("object") == "completion"
        assert client.wait_for("completion", wr_id=record["wr_id"]).items() >= record.items()
    assert ask(path, "reconnect") == []
    (again,) = ask(path, "post", "read rw+0 9")
    assert bytes.fromhex(again["data"]) == b"on demand"
    assert client.stop() == 0, "whatever was posted by hand"


def test_memory(start: Start, path: str) -> None:
    server = responder(start, "--control", path)
    assert run(server, "write rw+16 'in memory'").code == 0
    (record,) = ask(path, "memory", "rw+16", "9")
    assert bytes.fromhex(record["data"]) == b"in memory"
    with pytest.raises(ControlError, match="rw has 65536"):
        ask(path, "memory", "rw+65530", "9")


def test_regions_come_and_go(start: Start, path: str) -> None:
    server = responder(start, "--control", path)
    (record,) = ask(path, "register", "late:128:remote_read")
    assert (record["name"], record["length"], record["access"]) == ("late", 128, "remote_read")
    assert run(server, "read late+120 8").code == 0
    assert ask(path, "deregister", "late") == []
    client = run(server, "read late+120 8")
    assert client.code == 1
    assert "no region 'late'; there are: ro, rw" in client.errors
    raw = f"read @{record['va']:#x}/{record['rkey']:#x} 8"
    assert run(server, raw, "--expect", "REM_ACCESS_ERR").code == 0
    assert server.wait_for("violation")["causes"] == ["state"]


@pytest.mark.parametrize("name", ["responder", "requester"])
def test_stop(start: Start, path: str, tmp_path: Path, name: str) -> None:
    server = responder(start, "--control", str(tmp_path / "other"))
    command = server
    if name == "requester":
        command = idle_requester(start, server, path)
    assert ask(path if name == "requester" else tmp_path / "other", "stop") == []
    assert command.finish() == 0
    assert not (tmp_path / "control").exists()


def test_a_socket_that_a_dead_process_left(start: Start, path: str) -> None:
    responder(start, "--control", path).kill()
    assert os.path.exists(path)
    with pytest.raises(ControlError, match="no daemon answers"):
        ask(path, "state")
    responder(start, "--control", path)
    assert len(ask(path, "state")) == 2


def test_two_daemons_want_one_socket(start: Start, path: str) -> None:
    first = responder(start, "--control", path)
    second = run_here("responder", "--bind", "127.0.0.77", "--control", path)
    assert second.code == 1
    sentence = f"rocemu responder: another process listens on control socket {path}\n"
    assert second.errors == sentence
    assert len(ask(path, "state")) == 2, "the first one still has it"
    assert first.stop() == 0
    assert not os.path.exists(path)


@pytest.mark.parametrize("kind", ["file", "no folder", "long"])
def test_a_path_that_cannot_be_a_socket(tmp_path: Path, kind: str) -> None:
    path = {
        "file": tmp_path / "file",
        "no folder": tmp_path / "nowhere" / "ctl",
        "long": tmp_path / ("x" * 120),
    }[kind]
    if kind == "file":
        path.write_text("precious")
    command = run_here("responder", "--bind", "127.0.0.78", "--control", str(path))
    assert command.code == 1
    assert command.errors.startswith(f"rocemu responder: control socket {path}: ")
    assert command.errors.count("\n") == 1
    if kind == "file":
        assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["dance"], "no command 'dance'; there are state, counters, memory, stop, register, dereg"),
        (["state", "now"], "usage: state"),
        (["register"], "usage: register SPEC"),
        (["register", "x"], "'x': the form is NAME:SIZE:FLAGS"),
        (["register", "rw:1:none"], "there is a region 'rw' already"),
        (["register", "w:1:remote_write"], "IBV_ACCESS_REMOTE_WRITE requires IBV_ACCESS_LOCAL_WR"),
        (["register", "f:1:none:/no/such/file"], "region f: /no/such/file: No such file"),
        (["deregister", "nosuch"], "no region 'nosuch'; there are ro, rw"),
        (["memory", "rw", "many"], "size 'many': a number of bytes"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(
    start_shared: Start, shared_control: str, words: list[str], sentence: str
) -> None:
    with pytest.raises(ControlError) as caught:
        ask(shared_control, *words)
    assert str(caught.value).startswith(sentence)


@pytest.fixture(scope="module")
def shared_control(start_shared: Start, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("control") / "ctl")
    responder(start_shared, "--control", path)
    return path


@pytest.mark.parametrize(
    ("operation", "sentence"),
    [
        ("", "no operation"),
        ("dance rw+0", "'dance rw+0': no operation 'dance'"),
        ("read nosuch+0 8", "'read nosuch+0 8': 127"),
        ("write rw+0 <src+0:8", "no region 'src'; there are none"),
    ],
)
def test_what_cannot_be_posted(start: Start, path: str, operation: str, sentence: str) -> None:
    idle_requester(start, responder(start), path)
    with pytest.raises(ControlError) as caught:
        ask(path, "post", operation)
    assert str(caught.value).startswith(sentence)
    assert len(ask(path, "post", "read rw+0 1")) == 1, "the requester goes on"


def test_the_command(shared_control: str) -> None:
    shown = ctl(shared_control, "state")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["mr", "mr"]
    assert "name rw" in lines[1]
    assert "length 65536" in lines[1]
    as_json = ctl(shared_control, "--json", "state")
    assert [json.loads(line)["name"] for line in as_json.stdout.splitlines()] == ["ro", "rw"]
    wrong = ctl(shared_control, "dance")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("rocemu ctl: no command 'dance'; there are ")
    nobody = ctl(shared_control + "x", "state")
    assert nobody.returncode == 1
    assert nobody.stderr == (
        f"rocemu ctl: no daemon answers on {shared_control}x: No such file or directory\n"
    )
    assert ctl(shared_control).returncode == 2


@pytest.mark.parametrize(
    "request_", [b"\n", b"state\n", b"[]\n", b"{}\n", b"[1]\n", b'"state"\n', b"\xff\xfe\n", b""]
)
def test_any_bytes_on_the_socket(shared_control: str, request_: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(shared_control)
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as lines:
            (answer,) = map(json.loads, lines)
    assert answer == {"error": "a request is a JSON list of words"}


def test_a_line_without_end(shared_control: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(shared_control)
        try:
            client.sendall(b"x" * (1 << 20))
            assert client.recv(1) == b""
        except ConnectionError:
            pass  # it hung up while we were talking
    assert len(ask(shared_control, "state")) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_that_ends_while_it_is_asked(start: Start, path: str, number: int) -> None:
    """A message that nobody receives is retried for ever; who waits for it hears of the end."""
    client = idle_requester(start, responder(start, "--recv", "0"), path, "--rnr-retry", "7")
    asking = start("ctl", "--json", path, "post", "send 0123456789abcdef")
    while ask(path, "state")[0]["sends"] == 0:
        pass
    if number == signal.SIGTERM:
        assert client.stop() == 0
        assert asking.finish() == 0
        assert '"status": "IBV_WC_WR_FLUSH_ERR"' in asking.output[0]
    else:
        client.kill()
        assert asking.finish() == 1
        assert asking.errors == f"rocemu ctl: the daemon behind {path} ended before it answered\n"


def test_a_daemon_that_ends_while_it_connects_anew(start: Start, path: str) -> None:
    """Nobody is waited for: neither the peer, which is stopped, nor who asked."""
    server = responder(start)
    client = idle_requester(start, server, path)
    server.process.send_signal(signal.SIGSTOP)
    try:
        asking = start("ctl", path, "reconnect")
        client.wait_for("qp_state", 2, to="IBV_QPS_INIT")
        assert client.stop() == 0
        assert asking.finish() == 1
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert asking.errors == f"rocemu ctl: the daemon behind {path} ended before it answered\n"
    assert server.stop() == 0
