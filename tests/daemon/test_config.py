"""Daemons from a TOML file: the names of the options, and the command line wins."""

from pathlib import Path

from rocemu.daemon.config import RequesterConfig, ResponderConfig
from rocemu.net import IcrcPolicy
from rocemu.verbs import MTU, AccessFlags, WCStatus, WROpcode
from tests.daemon.processes import Start, run_here
from tests.net.pair import next_address

READ_WRITE = AccessFlags.IBV_ACCESS_LOCAL_WRITE | AccessFlags.IBV_ACCESS_REMOTE_WRITE


def test_every_field(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(
        """
        bind = "127.0.0.9"
        port = 4000
        mr = ["rw:64K:local_write,remote_write", "f:1M:none:/etc/hostname@0x1000/0x77700"]
        qp-access = "remote_read"
        recv = "2:64"
        capture = "x.pcapng"
        control = "/tmp/ctl"
        json = true
        icrc = "count"
        mtu = 512
        timeout = 10
        retry-count = 3
        rnr-retry = 2
        rnr-timer = 1
        seed = 5
        static = true
        remote = "127.0.0.2"
        qpn = 0x11
        psn = "0x100"
        remote-qpn = 18
        remote-psn = 0
        other-pd = ["f"]
        """
    )
    config = ResponderConfig.build(file, {})
    assert (config.bind, config.port, config.remote) == ("127.0.0.9", 4000, "127.0.0.2")
    rw, f = config.mr
    assert (rw.name, rw.size, rw.access, rw.file) == ("rw", 65536, READ_WRITE, None)
    assert (f.size, f.file, f.va, f.rkey) == (1 << 20, Path("/etc/hostname"), 0x1000, 0x77700)
    assert config.qp_access is AccessFlags.IBV_ACCESS_REMOTE_READ
    assert config.recv == (2, 64)
    assert (config.capture, config.control, config.json) == ("x.pcapng", Path("/tmp/ctl"), True)
    assert (config.icrc, config.mtu, config.seed) == (IcrcPolicy.COUNT, MTU.IBV_MTU_512, 5)
    assert (config.timeout, config.retry_count, config.rnr_retry, config.rnr_timer) == (10, 3, 2, 1)
    assert (config.qpn, config.psn, config.remote_qpn, config.remote_psn) == (0x11, 0x100, 18, 0)
    assert config.other_pd == ["f"]


def test_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text('remote = "127.0.0.1"\nport = 4000\nexpect = ["success"]\ntx-depth = 3\n')
    options = {"port": "5000", "remote": None, "operations": ["read x+0 1"], "expect": "FATAL_ERR"}
    config = RequesterConfig.build(file, options)
    assert (config.remote, config.port, config.tx_depth) == ("127.0.0.1", 5000, 3)
    assert config.expect == [WCStatus.IBV_WC_FATAL_ERR]
    assert [operation.opcode for operation in config.operations] == [WROpcode.IBV_WR_RDMA_READ]


def test_two_daemons_from_files(start: Start, tmp_path: Path) -> None:
    address = next_address()
    (tmp_path / "content").write_bytes(b"from a file, and zeros")
    (tmp_path / "r.toml").write_text(
        f'bind = "{address}"\njson = true\n'
        f'mr = ["data:64:remote_read:{tmp_path / "content"}", "ro:64:remote_read"]\n'
    )
    (tmp_path / "q.toml").write_text(
        f'bind = "{next_address()}"\nremote = "{address}"\njson = true\n'
        'operations = ["read data+0 24", "write ro+0 hello"]\n'
        'expect = ["SUCCESS", "REM_ACCESS_ERR"]\n'
    )
    server = start("responder", "--config", str(tmp_path / "r.toml"), "--json")
    server.wait_for("listening")
    client = run_here("requester", "--config", str(tmp_path / "q.toml"))
    assert client.code == 0, client.errors
    assert bytes.fromhex(client.of("completion")[0]["data"]) == b"from a file, and zeros\0\0"


def test_a_requester_finds_its_own_address(start: Start) -> None:
    """Without --bind: what routes to the peer, and on loopback another than the peer's."""
    address = next_address()
    server = start("responder", "--json", "--bind", address, "--mr", "r:8:remote_read")
    server.wait_for("listening")
    client = run_here("requester", "--json", address, "read r+0 8")
    assert client.code == 0, client.errors
    assert server.wait_for("connected")["peer"] != address
