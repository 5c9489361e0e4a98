"""Two real processes over loopback: every operation, what --json promises, every refusal."""

import json
import re
from pathlib import Path

import pytest

from rocemu.capture import open_capture
from tests.daemon.processes import (
    RO,
    RW,
    Command,
    Finished,
    Record,
    Start,
    address_of,
    ask,
    requester,
    responder,
    run,
)
from tests.net.pair import next_address

STATUS_CODES = {"SUCCESS": 0, "LOC_PROT_ERR": 4, "WR_FLUSH_ERR": 5, "REM_ACCESS_ERR": 10}


@pytest.fixture(scope="module")
def shared(start_shared: Start) -> Command:
    """One responder for all tests that do not end it; any number may connect."""
    return responder(start_shared, "--recv", "8:4096")


def statuses(command: Command | Finished) -> list[str]:
    return [r["status"].removeprefix("IBV_WC_") for r in command.of("completion")]


def number_of_its_peer(command: Command | Finished) -> int:
    return int(command.of("connected")[0]["remote_qp_num"])


def test_the_story_of_the_issue(start: Start, shared: Command) -> None:
    command = requester(
        start,
        shared,
        'write rw+0 "a longer hello"',
        "read rw+0 14",
        "write rw+8 hex:0a00000000000000",
        "fetch-add rw+8 1",
        "cmp-swap rw+8 11 2",
        "cmp-swap rw+8 11 3",
        "read rw+8 8",
        'send "sixteen bytes ok"',
    )
    assert command.finish() == 0, command.errors
    done = command.of("completion")
    assert [r["opcode"].removeprefix("IBV_WC_") for r in done] == [
        *("RDMA_WRITE", "RDMA_READ", "RDMA_WRITE", "FETCH_ADD", "COMP_SWAP", "COMP_SWAP"),
        *("RDMA_READ", "SEND"),
    ]
    assert {r["status"] for r in done} == {"IBV_WC_SUCCESS"}
    assert bytes.fromhex(done[1]["data"]) == b"a longer hello"
    assert [r["original"] for r in done[3:6]] == [10, 11, 2]
    assert done[6]["data"] == "0200000000000000"
    assert [r["wr_id"] for r in done] == list(range(1, 9)), "in order"
    received = shared.wait_for("completion", qp_num=number_of_its_peer(command))
    assert received["opcode"] == "IBV_WC_RECV"
    assert bytes.fromhex(received["data"]) == b"sixteen bytes ok"


TYPES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "connected": {"qp_num": int, "remote_qp_num": int, "peer": str},
    "completion": {
        "wr_id": int,
        "opcode": str,
        "status": str,
        "status_code": int,
        "qp_num": int,
        "byte_len": int,
    },
    "async": {"type": str, "qp_num": int},
    "qp_state": {"qp_num": int, "from": str, "to": str},
    "violation": {
        "side": str,
        "causes": list,
        "key": int,
        "va": int,
        "length": int,
        "access": str,
        "mr": (str, type(None)),
    },
    "listening": {"address": str, "port": int},
    "drop": {"reason": str, "source": str},
}


def check_types(record: Record) -> None:
    for key, kind in TYPES.get(record["event"], {}).items():
        assert isinstance(record[key], kind), (key, record)
        assert not isinstance(record[key], bool)


def test_the_keys_that_json_promises(start: Start, tmp_path: Path) -> None:
    server = responder(start, "--control", str(tmp_path / "ctl"))
    client = requester(start, server, "read rw+0 8", "write ro+16 hello", "read rw+0 8")
    assert client.finish() == 1
    number = number_of_its_peer(client)
    server.wait_for("disconnected")
    for command in (client, server):
        for record in command.records:
            check_types(record)
    assert {r["event"] for r in server.records} >= {
        *("listening", "connected", "completion", "violation", "async", "qp_state"),
    }
    assert server.of("listening")[0]["port"] == 4791
    (connected,) = server.of("connected")
    regions = {r["name"]: r for r in ask(tmp_path / "ctl", "state") if r["object"] == "mr"}
    assert {mr["name"] for mr in connected["mrs"]} == {"ro", "rw"}
    for mr in connected["mrs"]:
        assert {*mr} == {"name", "rkey", "va", "length", "access"}
        assert mr["rkey"] == regions[mr["name"]]["rkey"] != regions[mr["name"]]["lkey"]
    told = {mr["name"]: mr for mr in client.of("connected")[0]["remote_mrs"]}
    assert told == {mr["name"]: mr for mr in connected["mrs"]}
    (violation,) = server.of("violation")
    assert violation["side"] == "remote"
    assert violation["causes"] == ["permission"]
    assert violation["key"] == regions["ro"]["rkey"]
    assert violation["va"] == regions["ro"]["va"] + 16
    assert violation["length"] == 5
    assert violation["access"] == "remote_write"
    assert violation["mr"] == "ro"
    (event,) = server.of("async")
    assert event["type"] == "IBV_EVENT_QP_ACCESS_ERR"
    assert event["qp_num"] == number
    for command in (client, server):
        last = command.of("qp_state")[-1]
        assert (last["from"], last["to"]) == ("IBV_QPS_RTS", "IBV_QPS_ERR")
    for record in client.of("completion"):
        assert record["status_code"] == STATUS_CODES[record["status"].removeprefix("IBV_WC_")]
    assert statuses(client) == ["SUCCESS", "REM_ACCESS_ERR", "WR_FLUSH_ERR"]


@pytest.mark.parametrize(
    ("operation", "causes", "access"),
    [
        ("write ro+0 hello", ["permission"], "remote_write"),
        ("fetch-add ro+0 1", ["permission"], "remote_atomic"),
        ("cmp-swap ro+8 0 1", ["permission"], "remote_atomic"),
        ("read ro+4000 97", ["bounds"], "remote_read"),
        ("write rw+65535 ab", ["bounds"], "remote_write"),
        ("write ro+4096 hello", ["permission", "bounds"], "remote_write"),
        ("write rw+18446744073709551615 hello", ["bounds"], "remote_write"),
        ("write @0x1000/0xdeadbeef hello", ["key"], "remote_write"),
        ("read @0x1000/0xdeadbeef 8", ["key"], "remote_read"),
        ("fetch-add @4096/3735928559 1", ["key"], "remote_atomic"),
        ("read other+0 8", ["pd"], "remote_read"),
        ("write other+4090 much-too-long", ["pd", "permission", "bounds"], "remote_write"),
    ],
)
def test_a_refused_access_names_every_cause(
    shared_with_other_pd: Command, operation: str, causes: list[str], access: str
) -> None:
    client = run(shared_with_other_pd, operation, "--expect", "REM_ACCESS_ERR")
    assert client.code == 0, client.errors
    number = number_of_its_peer(client)
    violation = shared_with_other_pd.wait_for("violation", qp_num=number)
    assert violation["causes"] == causes
    assert violation["access"] == access
    assert shared_with_other_pd.wait_for("async", qp_num=number)["type"] == (
        "IBV_EVENT_QP_ACCESS_ERR"
    )
    assert client.of("violation") == [], "the requester cannot know why"


@pytest.fixture(scope="module")
def shared_with_other_pd(start_shared: Start) -> Command:
    regions = (RO, RW, "other:4096:remote_read")
    return responder(start_shared, "--other-pd", "other", regions=regions)


def test_a_withdrawn_key(start: Start, tmp_path: Path) -> None:
    """Deregistered after it was advertised: cause ``state``, not ``key``."""
    control, own = str(tmp_path / "ctl"), str(tmp_path / "own")
    server = responder(start, "--control", control)
    client = requester(start, server, "read rw+0 8", "--daemon", "--control", own)
    client.wait_for("completion")
    assert ask(control, "deregister", "rw") == []
    (answer,) = ask(own, "post", "read rw+0 8")
    assert answer["status"] == "IBV_WC_REM_ACCESS_ERR"
    assert server.wait_for("violation")["causes"] == ["state"]
    assert [r["name"] for r in ask(control, "state") if r["object"] == "mr"] == ["ro"]
    assert client.stop() == 0


def test_the_queue_pair_may_be_narrower_than_the_region(start: Start) -> None:
    """--qp-access: an Invalid Request, for it is no matter of the region ([IBTA] 9.7.4.1.5)."""
    server = responder(start, "--qp-access", "remote_read")
    client = run(server, "read rw+0 4", "write rw+0 no", "--expect", "SUCCESS,REM_INV_REQ_ERR")
    assert client.code == 0, client.errors
    assert server.of("violation") == []


# ---------------------------------------------------------------------- the local half


def test_operations_on_regions_of_our_own(shared: Command, tmp_path: Path) -> None:
    content = bytes(range(200)) * 20
    (tmp_path / "content").write_bytes(content)
    client = run(
        shared,
        *("--mr", f"src:4096:none:{tmp_path / 'content'}", "--mr", "dst:4096:local_write"),
        "write rw+4096 <src+0:4000",
        "read rw+4096 4000 >dst+96",
        "write rw+20000 <dst+96:4000",
        "read rw+20000 4000",
        "fetch-add rw+4096 1 >dst+0",
        "write rw+24000 <dst+0:8",
        "read rw+24000 8",
        "send <src+100:16",
    )
    assert client.code == 0, client.errors
    done = client.of("completion")
    assert bytes.fromhex(done[3]["data"]) == content
    assert "data" not in done[1], "it went to a region"
    assert bytes.fromhex(done[6]["data"]) == content[:8]
    received = shared.wait_for("completion", qp_num=number_of_its_peer(client))
    assert bytes.fromhex(received["data"]) == content[100:116]


@pytest.mark.parametrize(
    ("operation", "causes"),
    [
        ("write rw+0 <src+0:64 lkey=0x1", ["key"]),
        ("write rw+0 hello lkey=0xdeadbeef", ["key"]),
        ("send hello lkey=0x1", ["key"]),
        ("read rw+0 8 lkey=0x1", ["key"]),
        ("write rw+0 <src+4090:64", ["bounds"]),
        ("read rw+0 64 >src+0", ["permission"]),
        ("fetch-add rw+0 1 >src+0", ["permission"]),
        ("read rw+0 64 >src+4090", ["permission", "bounds"]),
    ],
)
def test_a_local_protection_error_sends_no_packet(
    shared: Command, tmp_path: Path, operation: str, causes: list[str]
) -> None:
    """IBV_WC_LOC_PROT_ERR before the wire: nothing of it in the requester's own capture."""
    capture = tmp_path / "own.pcapng"
    client = run(
        shared,
        *("--mr", "src:4096:none", "--capture", str(capture), "--tx-depth", "3"),
        *("write rw+0 first", operation, "write rw+0 later"),
        *("--expect", "SUCCESS,LOC_PROT_ERR,WR_FLUSH_ERR"),
    )
    assert client.code == 0, client.errors
    (violation,) = client.of("violation")
    assert violation["side"] == "local"
    assert violation["causes"] == causes
    assert client.of("async") == [], "a completion tells it, no event"
    assert shared.wait_for("disconnected", qp_num=number_of_its_peer(client))
    assert requests_in(capture) == [0x0A], "the first WRITE, and no other request"


def requests_in(capture: Path) -> list[int]:
    """Opcodes of the RC requests in a capture, in order."""
    with open_capture(capture) as packets:
        opcodes = [packet.data[14 + 20 + 8] for packet in packets]
    return [opcode for opcode in opcodes if opcode <= 0x0C or opcode in (0x13, 0x14)]


# ---------------------------------------------------------------------- more of the language


def test_immediates(shared: Command) -> None:
    client = run(
        shared,
        "send 0123456789abcdef imm=0xcafe",
        "write rw+512 0123456789abcdef imm=7",
        "send <src+0:3000 imm=0",
        *("--mr", "src:4096:none"),
    )
    assert client.code == 0, client.errors
    number = number_of_its_peer(client)
    came = [shared.wait_for("completion", count, qp_num=number) for count in (1, 2, 3)]
    assert [r["immediate"] for r in came] == [0xCAFE, 7, 0]
    assert [r["opcode"] for r in came] == [
        "IBV_WC_RECV",
        "IBV_WC_RECV_RDMA_WITH_IMM",
        "IBV_WC_RECV",
    ]
    assert came[0]["data"] == b"0123456789abcdef".hex()
    assert "data" not in came[1]
    assert [r["byte_len"] for r in came] == [16, 16, 3000]


def test_flags_of_operations(shared: Command) -> None:
    """Unsignaled ones complete silently, inline ones need no lkey; all of them are carried out."""
    client = run(
        shared,
        "write rw+1000 first unsignaled",
        "write rw+1005 second inline lkey=0x1",
        "read rw+1000 11 fence",
        "send 0123456789abcdef solicited",
        "write rw+1011 last unsignaled",
        "--expect",
        "SUCCESS,SUCCESS,SUCCESS",
    )
    assert client.code == 0, client.errors
    done = client.of("completion")
    assert [r["wr_id"] for r in done] == [2, 3, 4]
    assert bytes.fromhex(done[1]["data"]) == b"firstsecond"
    again = run(shared, "read rw+1011 4")
    assert bytes.fromhex(again.of("completion")[0]["data"]) == b"last"


def test_an_unsignaled_one_that_is_refused_is_told(shared: Command) -> None:
    client = run(shared, "write ro+0 hello unsignaled")
    assert client.code == 1
    assert statuses(client) == ["REM_ACCESS_ERR"]


def test_many_posted_at_once(shared: Command) -> None:
    operations = [f"write rw+{2000 + i} {'abcdefghij'[i % 10]}" for i in range(300)]
    client = run(shared, "--tx-depth", "512", *operations, "read rw+2000 300")
    assert client.code == 0, client.errors
    assert bytes.fromhex(client.of("completion")[-1]["data"]) == b"abcdefghij" * 30


def test_empty_messages(shared: Command) -> None:
    """Of no length: no key is looked at ([IBTA] C9-88)."""
    client = run(shared, "write @0/0 ''", "read @0/0 0", "send ''", "write rw+65536 hex:")
    assert client.code == 0, client.errors
    assert [r["byte_len"] for r in client.of("completion")] == [0, 0, 0, 0]


def test_operations_from_a_file(shared: Command, tmp_path: Path) -> None:
    (tmp_path / "story").write_text(
        "# a comment\n\n  write rw+3000 'from a file'\nread rw+3000 11\n"
    )
    client = run(shared, "write rw+3000 overwritten", "--file", str(tmp_path / "story"))
    assert client.code == 0, client.errors
    assert [r["operation"] for r in client.of("completion")] == [
        "write rw+3000 overwritten",
        "write rw+3000 'from a file'",
        "read rw+3000 11",
    ]
    assert bytes.fromhex(client.of("completion")[2]["data"]) == b"from a file"


def test_operations_from_standard_input(shared: Command) -> None:
    client = run(shared, "--file", "-", stdin="write rw+3100 piped\n# so\nread rw+3100 5\n")
    assert client.code == 0, client.errors
    assert bytes.fromhex(client.of("completion")[1]["data"]) == b"piped"


def test_a_requester_without_operations_connects_and_ends(shared: Command) -> None:
    client = run(shared)
    assert client.code == 0
    assert shared.wait_for("disconnected", qp_num=number_of_its_peer(client))


# ---------------------------------------------------------------------- --expect, exit codes


@pytest.mark.parametrize(
    ("expect", "code"),
    [
        ("SUCCESS,REM_ACCESS_ERR,WR_FLUSH_ERR", 0),
        ("success,IBV_WC_REM_ACCESS_ERR, wr_flush_err", 0),
        ("SUCCESS,REM_ACCESS_ERR", 1),
        ("SUCCESS,SUCCESS,SUCCESS", 1),
        ("SUCCESS,REM_ACCESS_ERR,WR_FLUSH_ERR,WR_FLUSH_ERR", 1),
    ],
)
def test_expect(shared: Command, expect: str, code: int) -> None:
    client = run(shared, "read rw+0 1", "write ro+0 no", "read rw+0 1", "--expect", expect)
    assert client.code == code
    if code:
        assert "but there were:       SUCCESS REM_ACCESS_ERR WR_FLUSH_ERR" in client.errors
    else:
        assert client.errors == ""


def test_a_region_that_was_not_advertised(shared: Command) -> None:
    client = run(shared, "read rw+0 1", "read nosuch+0 1")
    assert client.code == 1
    assert client.of("completion") == [], "found before anything is posted"
    assert re.fullmatch(
        r"rocemu requester: 'read nosuch\+0 1': 127[\d.]+ advertised no region 'nosuch'; "
        r"there are: ro, rw\n",
        client.errors,
    )
    assert shared.wait_for("disconnected", qp_num=number_of_its_peer(client)), "and it disconnected"


# ---------------------------------------------------------------------- receives


def test_what_arrives_is_shown_again_and_again(start: Start) -> None:
    """Two receives are posted, and each again when it is used."""
    server = responder(start, "--recv", "2:64")
    client = run(server, *(f"send 'message number {i:02}'" for i in range(9)))
    assert client.code == 0, client.errors
    server.wait_for("completion", 9)
    texts = [bytes.fromhex(r["data"]).decode() for r in server.of("completion")]
    assert texts == [f"message number {i:02}" for i in range(9)]


def test_no_receives_draw_rnr_naks(start: Start) -> None:
    server = responder(start, "--recv", "0", "--rnr-timer", "1")
    client = run(server, "send 0123456789abcdef", "--rnr-retry", "2")
    assert client.code == 1
    assert statuses(client) == ["RNR_RETRY_EXC_ERR"]


def test_a_message_longer_than_the_receive(start: Start) -> None:
    server = responder(start, "--recv", "1:16")
    client = run(server, "send 0123456789abcdefg", "--expect", "REM_INV_REQ_ERR")
    assert client.code == 0, client.errors
    assert server.wait_for("completion")["status"] == "IBV_WC_LOC_LEN_ERR"


# ---------------------------------------------------------------------- many, and much


def test_many_regions(start: Start) -> None:
    """A REP holds a few; the rest is read from a directory, and nobody sees that."""
    regions = tuple(f"region-{i}:4096:remote_read" for i in range(30))
    server = responder(start, regions=regions)
    client = run(server, *(f"read region-{i}+4088 8" for i in range(0, 30, 7)))
    assert client.code == 0, client.errors
    assert [mr["name"] for mr in client.of("connected")[0]["remote_mrs"]] == [
        f"region-{i}" for i in range(30)
    ]


def test_requesters_side_by_side(start: Start, shared: Command) -> None:
    clients = [
        requester(start, shared, f"write rw+{5000 + 8 * i} client-{i}", f"read rw+{5000 + 8 * i} 8")
        for i in range(5)
    ]
    for i, client in enumerate(clients):
        assert client.finish() == 0, client.errors
        assert bytes.fromhex(client.of("completion")[1]["data"]) == f"client-{i}".encode()
    assert len({number_of_its_peer(client) for client in clients}) == 5


def test_a_big_transfer(start: Start) -> None:
    server = responder(start, regions=("big:16M:local_write,remote_write,remote_read",))
    client = run(
        server,
        *("--mr", "own:16M:local_write"),
        "write big+0 <own+0:16M",
        "read big+0 16M >own+0",
    )
    assert client.code == 0, client.errors
    assert statuses(client) == ["SUCCESS", "SUCCESS"]


def test_text_for_people(start: Start, shared: Command) -> None:
    """Without --json: the same story in lines."""
    client = start(
        *("requester", "--bind", next_address(), address_of(shared)),
        *(
            "write rw+40000 'a longer hello'",
            "read rw+40000 14",
            "fetch-add rw+40016 5",
            "write ro+0 x",
        ),
    )
    assert client.finish() == 1
    text = "".join(client.output)
    assert re.search(r"^connected: QP 0x[0-9a-f]+ to QP 0x[0-9a-f]+ of 127", text, re.MULTILINE)
    assert "IBV_WC_RDMA_READ  IBV_WC_SUCCESS  14 bytes  'a longer hello'" in text
    assert "IBV_WC_FETCH_ADD  IBV_WC_SUCCESS  8 bytes  original 0" in text
    assert "IBV_WC_RDMA_WRITE  IBV_WC_REM_ACCESS_ERR   [write ro+0 x]" in text
    assert "IBV_QPS_RTS -> IBV_QPS_ERR" in text


def test_every_line_of_json_is_an_object(shared: Command) -> None:
    for line in shared.output:
        assert isinstance(json.loads(line), dict)
