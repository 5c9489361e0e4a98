"""FLUSH, ATOMIC WRITE, SEND with Invalidate, profile and packet look between two processes."""

from rocemu.capture import decode_frame, open_capture
from rocemu.wire import FETH, Op, parse
from tests.daemon.processes import Start, requester, responder

REGION = "kept:4096:local_write,remote_write,remote_read,flush_global"


def test_atomic_write_and_flush(start: Start) -> None:
    serving = responder(start, "--mr", REGION)
    command = requester(
        start,
        serving,
        "atomic-write kept+8 hex:0011223344556677",
        "flush kept+0 16",
        "flush kept+0 16 plt=2",
        "read kept+8 8",
    )
    assert command.finish() == 1
    done = command.of("completion")
    assert [r["status"].removeprefix("IBV_WC_") for r in done] == [
        *("SUCCESS", "SUCCESS", "REM_ACCESS_ERR", "WR_FLUSH_ERR")
    ]
    assert [r["opcode"] for r in done[:2]] == ["IBV_WC_ATOMIC_WRITE", "IBV_WC_FLUSH"]
    violation = serving.wait_for("violation")
    assert violation["causes"] == ["permission"]
    assert violation["access"] == "flush_persistent"


def test_a_send_with_invalidate_of_an_ordinary_key_is_silence(start: Start) -> None:
    serving = responder(start)
    command = requester(
        start, serving, "send hello inv=0x1234", "--timeout", "10", "--retry-count", "1"
    )
    assert command.finish() == 1
    assert [r["status"] for r in command.of("completion")] == ["IBV_WC_RETRY_EXC_ERR"]
    assert serving.wait_for("completion")["status"] == "IBV_WC_REM_INV_REQ_ERR"


def test_the_same_under_soft_roce_is_acknowledged(start: Start) -> None:
    serving = responder(start, "--profile", "soft-roce")
    command = requester(start, serving, "send hello inv=0x1234")
    assert command.finish() == 0


def test_packets_have_the_look_that_was_asked_for(start: Start, tmp_path) -> None:  # type: ignore[no-untyped-def]
    serving = responder(start)
    file = tmp_path / "look.pcapng"
    look = ("--tos", "0x68", "--ttl", "3", "--migreq", "--pkey", "0x7fff")
    command = requester(
        start,
        serving,
        "write rw+0 hello",
        "flush rw+0 8 sel=1 plt=3",
        "--capture",
        str(file),
        *look,
    )
    assert command.finish() == 1  # rw has no flush rights
    with open_capture(file) as reader:
        frames = [decode_frame(p.linktype, p.data) for p in reader]
    mine = [f for f in frames if f is not None and f.flow.tos == 0x68 and f.flow.ttl == 3]
    packets = [parse(f.payload[:-4]) for f in mine]
    assert Op.RDMA_WRITE_ONLY in {p.bth.opcode for p in packets}
    assert {(p.bth.migreq, p.bth.pkey) for p in packets} == {(True, 0x7FFF)}
    (flush,) = [p for p in packets if p.bth.opcode == Op.FLUSH]
    assert flush.feth == FETH(3, 1)
