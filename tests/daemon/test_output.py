"""What people see: one line an event."""

import io
import json

import pytest

from rocemu.daemon.output import LINES, Reporter, completion_record, event_record
from rocemu.protection import Access, ProtectionTable
from rocemu.transport import WC, AsyncEvent, Datagram, Drop, QPStateChange, Violation
from rocemu.verbs import AccessFlags, AsyncEventType, QPState, WCOpcode, WCStatus
from rocemu.wire import BTH

DATAGRAM = Datagram(bytes(12), "127.0.0.1", "127.0.0.2", 50000)


def lines(*reports: tuple[str, dict[str, object]], as_json: bool = False) -> list[str]:
    stream = io.StringIO()
    report = Reporter(stream, as_json=as_json)
    for name, fields in reports:
        report(name, **fields)
    return stream.getvalue().splitlines()


def recorded(event: object) -> tuple[str, dict[str, object]]:
    found = event_record(event)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_completions() -> None:
    good = WC(3, WCStatus.IBV_WC_SUCCESS, WCOpcode.IBV_WC_RECV, 17, byte_len=5, imm_data=7)
    bad = WC(4, WCStatus.IBV_WC_RETRY_EXC_ERR, WCOpcode.IBV_WC_SEND, 17, vendor_err=111)
    assert lines(
        ("completion", completion_record(good, data=b"hello".hex())),
        ("completion", completion_record(bad, operation="send x")),
    ) == [
        "completion: wr_id 3  IBV_WC_RECV  IBV_WC_SUCCESS  5 bytes  immediate 0x7  'hello'",
        "completion: wr_id 4  IBV_WC_SEND  IBV_WC_RETRY_EXC_ERR  vendor_err 111   [send x]",
    ]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain text", "'plain text'"),
        (b"\x00\x01\xff", "00 01 ff"),
        (b"two\nlines", "74 77 6f 0a 6c 69 6e 65 73"),
        (b"\x1b[31m", "1b 5b 33 31 6d"),
        (b"\x00" * 100, "00 " * 63 + "00 ..."),
        (b"x" * 100, f"'{'x' * 64}' ..."),
        ("é".encode(), "c3 a9"),
    ],
)
def test_data_never_reaches_the_terminal_raw(data: bytes, shown: str) -> None:
    completion = WC(1, WCStatus.IBV_WC_SUCCESS, WCOpcode.IBV_WC_RDMA_READ, 17, byte_len=len(data))
    (line,) = lines(("completion", completion_record(completion, data=data.hex())))
    assert line.endswith(f"{len(data)} bytes  {shown}")


def test_an_atomic() -> None:
    completion = WC(1, WCStatus.IBV_WC_SUCCESS, WCOpcode.IBV_WC_FETCH_ADD, 17, byte_len=8)
    (line,) = lines(("completion", completion_record(completion, original=0)))
    assert line.endswith("8 bytes  original 0")


def test_drops() -> None:
    assert lines(
        recorded(Drop("short", "5 bytes", DATAGRAM)),
        recorded(Drop("qpn", "no QP 0x99", DATAGRAM, BTH(0x0A, 0x99, 7))),
        recorded(Drop("opcode", "reserved", DATAGRAM, BTH(0xFF, 0x99, 7))),
    ) == [
        "drop: short: from 127.0.0.1: 5 bytes",
        "drop: qpn: RC RDMA WRITE Only PSN 7 from 127.0.0.1: no QP 0x99",
        "drop: opcode: reserved 0xff PSN 7 from 127.0.0.1: reserved",
    ]


def test_a_violation_of_a_key_that_is_none() -> None:
    needed = AccessFlags.IBV_ACCESS_REMOTE_WRITE
    verdict = ProtectionTable().authorize(Access(0xDEAD00, 0x1000, 5, needed, 1, 17, remote=True))
    name, record = recorded(Violation("remote", verdict, 17, DATAGRAM))
    assert name == "violation"
    assert record["causes"] == ["key"]
    assert (record["key"], record["va"], record["length"]) == (0xDEAD00, 0x1000, 5)
    assert record["mr"] is None
    assert json.loads(lines((name, record), as_json=True)[0])["access"] == "remote_write"


def test_states_and_events() -> None:
    assert lines(
        recorded(QPStateChange(17, QPState.IBV_QPS_RTS, QPState.IBV_QPS_ERR)),
        recorded(AsyncEvent(AsyncEventType.IBV_EVENT_QP_ACCESS_ERR, 17)),
    ) == [
        "QP 0x11: IBV_QPS_RTS -> IBV_QPS_ERR",
        "async event: IBV_EVENT_QP_ACCESS_ERR  QP 0x11",
    ]


def test_json_is_one_object_a_line_with_the_time() -> None:
    (line,) = lines(("trouble", {"detail": "two\nlines"}), as_json=True)
    record = json.loads(line)
    assert record.pop("time") > 1.7e9
    assert record == {"event": "trouble", "detail": "two\nlines"}


def test_every_event_has_a_line() -> None:
    assert set(LINES) >= {
        *("listening", "connected", "completion", "async", "qp_state", "violation", "drop")
    }
