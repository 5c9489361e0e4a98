"""Scenarios against a live peer: the two halves of one file, each in a thread with sockets."""

import socket
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from rocemu.cli.main import main
from rocemu.net import NetError
from rocemu.scenario import Report, Scenario, ScenarioError, load, play_live, read_scenario
from rocemu.wire import ROCE_PORT
from tests.net.pair import next_address

GALLERY = Path(__file__).parents[2] / "scenarios"

STORY = """
title = "WRITE and READ, then a refused WRITE"
requester.mr = ["buf:64:local_write"]
responder.mr = [
    "rw:4096:local_write,remote_write,remote_read@0x10000/0x1234",
    "ro:64:remote_read@0x20000/0x2234",
]
script = '''
requester: write rw+0 hello
> RDMA WRITE Only  psn=+0 ackreq va=rw+0 rkey=rw
< ACK  psn=+0 msn=1
responder: memory rw+0 hello
requester: completion 1 IBV_WC_SUCCESS

requester: read rw+0 5 >buf+0
> RDMA READ Request  psn=+1
< RDMA READ Response Only  psn=+1 msn=2 payload=hello
requester: completion 2 IBV_WC_SUCCESS
requester: memory buf+0 hello

requester: write ro+0 no
> RDMA WRITE Only  psn=+2
< NAK Remote Access Error  psn=+2 msn=2
responder: event IBV_EVENT_QP_ACCESS_ERR
requester: completion 3 IBV_WC_REM_ACCESS_ERR
'''
"""


def listening(address: str) -> bool:
    """Whether UDP 4791 of an address is bound."""
    number = int.from_bytes(socket.inet_aton(address), sys.byteorder)
    return f" {number:08X}:{ROCE_PORT:04X} " in Path("/proc/net/udp").read_text(encoding="ascii")


def both_halves(first: Scenario, second: Scenario) -> tuple[Report, Report]:
    """Requester's and responder's part, over loopback, each as its file says."""
    addresses = next_address(), next_address()
    with ThreadPoolExecutor(1) as pool:
        answering: Future[Report] = pool.submit(play_live, second, "responder", *addresses)
        while not listening(addresses[0]):
            assert not answering.done() or answering.result()
            time.sleep(0.01)
        asking = play_live(first, "requester", addresses[1], addresses[0])
        return asking, answering.result(60)


def test_both_halves_of_a_file_play_with_each_other() -> None:
    for report in both_halves(read_scenario(STORY), read_scenario(STORY)):
        assert report.good, report.difference


def test_each_half_finds_what_the_other_did_otherwise() -> None:
    other = STORY.replace('"ro:64:remote_read', '"ro:64:local_write,remote_write,remote_read')
    asking, answering = both_halves(read_scenario(STORY), read_scenario(other))
    for report in (asking, answering):
        assert report.difference is not None
        assert report.difference.text.startswith("< NAK Remote Access Error")
        assert report.difference.came.startswith("< ACK  psn=+2 msn=3")


def test_a_scripted_peer_misbehaves_on_the_wire() -> None:
    """Wrong ICRC, P_Key, TVer, QP number and transport: the live responder drops them all."""

    def placed() -> Scenario:
        text = (GALLERY / "silent-drops.toml").read_text(encoding="utf-8")
        return read_scenario(text.replace('remote_write"', 'remote_write@0x10000/0x1234"'))

    for report in both_halves(placed(), placed()):
        assert report.good, report.difference


def test_nobody_there_is_told() -> None:
    with pytest.raises(NetError, match="nobody listens on UDP port 4791"):
        play_live(read_scenario(STORY), "requester", next_address(), next_address())


def test_a_region_of_the_peer_needs_a_place() -> None:
    scenario = load(GALLERY / "refused-permission.toml")
    with pytest.raises(ScenarioError, match="region 'ro': a live peer's needs @VA/RKEY"):
        play_live(scenario, "requester", next_address(), next_address())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--as", "server", "127.0.0.1", "x.toml"],
            "'server': allowed are requester and responder",
        ),
        (["--as", "requester", "127.0.0.1"], "with --as, HOST and FILE are needed"),
        (["--as", "requester", "127.0.0.1", "PSN", "PSN"], "goes with one scenario only"),
        (["--bind", "127.0.0.1", "PSN"], "goes with --as only"),
    ],
)
def test_mistakes(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    psn = str(GALLERY / "psn-gap.toml")
    words = [word.replace("PSN", psn).replace("x.toml", psn) for word in words]
    assert main(["scenario", "run", *words]) == 2
    assert says in capsys.readouterr().err
