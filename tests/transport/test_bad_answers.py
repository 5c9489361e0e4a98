"""Responses that no responder should send: what is ignored and what ends the pair."""

import pytest

from rocemu.verbs import QPState, WCStatus, WROpcode
from rocemu.wire import AETH, AtomicAckETH, Op
from tests.transport.fabric import Fabric, connect, packet, statuses

OK, FLUSHED = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_WR_FLUSH_ERR
LEN_ERR, BAD_RESP = WCStatus.IBV_WC_LOC_LEN_ERR, WCStatus.IBV_WC_BAD_RESP_ERR
WRITE, READ = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_READ
ADD = WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD


def sent(*work: tuple[WROpcode, int]) -> Fabric:
    """A fabric that loses all; side a has sent this work, wr_id from 1, PSNs from 0x100."""
    fabric = connect(link=lambda sent: ())
    for wr_id, (opcode, length) in enumerate(work, 1):
        fabric.a.post(opcode, fabric.a.sge(0, length), wr_id=wr_id, to=(fabric.b.mr, 0))
    fabric.run(0.001)
    fabric.log.clear()
    return fabric


def answer(opcode: Op, psn: int, data: bytes = b"", syndrome: int = 0x1F) -> bytes:
    return packet(
        opcode,
        psn,
        data,
        ackreq=False,
        aeth=AETH(syndrome, 1),
        atomicacketh=AtomicAckETH(0x1122334455667788),
    )


@pytest.mark.parametrize(
    ("syndrome", "status"),
    [
        (0x61, WCStatus.IBV_WC_REM_INV_REQ_ERR),
        (0x62, WCStatus.IBV_WC_REM_ACCESS_ERR),
        (0x63, WCStatus.IBV_WC_REM_OP_ERR),
        (0x64, WCStatus.IBV_WC_REM_INV_RD_REQ_ERR),
    ],
)
@pytest.mark.parametrize(
    "failing", [(WRITE, 8), (WRITE, 1024), (READ, 8), (READ, 3000), (ADD, 8)], ids=str
)
def test_a_fatal_nak_fails_its_request_after_those_before_it(
    failing: tuple[WROpcode, int], syndrome: int, status: WCStatus
) -> None:
    fabric = sent((WRITE, 8), (WRITE, 2000), failing, (WRITE, 8))
    fabric.inject(answer(Op.ACKNOWLEDGE, 0x103, syndrome=syndrome), fabric.a)
    assert statuses(fabric.a.sends()) == [(1, OK), (2, OK), (3, status), (4, FLUSHED)]
    assert fabric.a.qp.state is QPState.IBV_QPS_ERR
    assert fabric.a.async_events() == []
    fabric.run()
    assert fabric.log == []
    assert fabric.a.device.next_timer() is None


def test_a_fatal_nak_within_a_message() -> None:
    fabric = sent((WRITE, 8), (WRITE, 4096))
    fabric.inject(answer(Op.ACKNOWLEDGE, 0x103, syndrome=0x62), fabric.a)
    assert statuses(fabric.a.sends()) == [(1, OK), (2, WCStatus.IBV_WC_REM_ACCESS_ERR)]


@pytest.mark.parametrize("first", [(READ, 8), (READ, 2048), (ADD, 8)], ids=str)
def test_a_read_that_was_not_answered_comes_before_a_fatal_nak(
    first: tuple[WROpcode, int],
) -> None:
    fabric = sent(first, (WRITE, 8))
    psn = 0x102 if first == (READ, 2048) else 0x101
    fabric.inject(answer(Op.ACKNOWLEDGE, psn, syndrome=0x62), fabric.a)
    assert fabric.a.sends() == []
    fabric.run(0.001)
    assert [p for _, p in fabric.wire(fabric.a)] == [0x100, psn]


@pytest.mark.parametrize("syndrome", [0x40, 0x5F, 0x80, 0x9F, 0xA2, 0xE2, 0xFF])
def test_reserved_syndromes_are_ignored(syndrome: int) -> None:
    fabric = sent((WRITE, 8), (WRITE, 8))
    fabric.inject(answer(Op.ACKNOWLEDGE, 0x101, syndrome=syndrome), fabric.a)
    assert fabric.a.sends() == []
    assert fabric.a.qp.state is QPState.IBV_QPS_RTS


@pytest.mark.parametrize("code", [5, 16, 31])
def test_reserved_nak_codes_fail_nothing(code: int) -> None:
    fabric = sent((WRITE, 8))
    fabric.inject(answer(Op.ACKNOWLEDGE, 0x100, syndrome=0x60 | code), fabric.a)
    assert fabric.a.sends() == []
    assert fabric.a.qp.state is QPState.IBV_QPS_RTS


ONLY, FIRST = Op.RDMA_READ_RESPONSE_ONLY, Op.RDMA_READ_RESPONSE_FIRST
MIDDLE, LAST = Op.RDMA_READ_RESPONSE_MIDDLE, Op.RDMA_READ_RESPONSE_LAST
FULL = b"F" * 1024


@pytest.mark.parametrize(
    ("length", "responses", "status"),
    [
        (64, [(ONLY, bytes(32))], LEN_ERR),
        (64, [(ONLY, bytes(65))], LEN_ERR),
        (64, [(ONLY, b"")], LEN_ERR),
        (0, [(ONLY, b"data")], LEN_ERR),
        (64, [(FIRST, FULL)], LEN_ERR),
        (64, [(LAST, bytes(64))], BAD_RESP),
        (64, [(MIDDLE, bytes(64))], BAD_RESP),
        (64, [(Op.ATOMIC_ACKNOWLEDGE, b"")], BAD_RESP),
        (2000, [(ONLY, FULL)], LEN_ERR),
        (2000, [(FIRST, bytes(1020))], LEN_ERR),
        (2000, [(MIDDLE, FULL)], BAD_RESP),
        (2000, [(FIRST, FULL), (MIDDLE, bytes(976))], LEN_ERR),
        (2000, [(FIRST, FULL), (LAST, bytes(975))], LEN_ERR),
        (2000, [(FIRST, FULL), (LAST, FULL)], LEN_ERR),
        (2000, [(FIRST, FULL), (Op.ATOMIC_ACKNOWLEDGE, b"")], BAD_RESP),
        (3000, [(FIRST, FULL), (LAST, FULL)], LEN_ERR),
        (3000, [(FIRST, FULL), (MIDDLE, bytes(1020))], LEN_ERR),
    ],
)
def test_read_responses_of_a_wrong_kind_or_length(
    length: int, responses: list[tuple[Op, bytes]], status: WCStatus
) -> None:
    fabric = sent((READ, length), (WRITE, 8))
    for i, (opcode, data) in enumerate(responses):
        fabric.inject(answer(opcode, 0x100 + i, data), fabric.a)
    assert statuses(fabric.a.sends()) == [(1, status), (2, FLUSHED)]
    assert fabric.a.qp.state is QPState.IBV_QPS_ERR
    whole = 1024 * (len(responses) - 1)
    assert bytes(fabric.a.mr.memory[: whole + 1024]) == b"F" * whole + bytes(1024)


@pytest.mark.parametrize(
    ("request_", "opcode", "data"),
    [
        ((WRITE, 8), ONLY, b""),
        ((WRITE, 8), ONLY, bytes(8)),
        ((WRITE, 2000), FIRST, FULL),
        ((WRITE, 8), Op.ATOMIC_ACKNOWLEDGE, b""),
        ((ADD, 8), ONLY, bytes(8)),
        ((ADD, 8), FIRST, FULL),
    ],
)
def test_an_answer_to_another_kind_of_request(
    request_: tuple[WROpcode, int], opcode: Op, data: bytes
) -> None:
    fabric = sent(request_, (WRITE, 8))
    fabric.inject(answer(opcode, 0x100, data), fabric.a)
    assert statuses(fabric.a.sends()) == [(1, BAD_RESP), (2, FLUSHED)]
    assert bytes(fabric.a.mr.memory[:8]) == bytes(8)


def test_a_read_response_also_acknowledges_what_was_before() -> None:
    fabric = sent((WRITE, 8), (WRITE, 3000), (READ, 8))
    fabric.inject(answer(ONLY, 0x104, b"response"), fabric.a)
    assert statuses(fabric.a.sends()) == [(1, OK), (2, OK), (3, OK)]
    assert bytes(fabric.a.mr.memory[:8]) == b"response"


def test_an_atomic_answer_also_acknowledges_what_was_before() -> None:
    fabric = sent((WRITE, 8), (ADD, 8))
    fabric.inject(answer(Op.ATOMIC_ACKNOWLEDGE, 0x101), fabric.a)
    assert statuses(fabric.a.sends()) == [(1, OK), (2, OK)]
    assert bytes(fabric.a.mr.memory[:8]).hex() == "8877665544332211"


def test_a_repeated_response_is_ignored() -> None:
    fabric = sent((READ, 3000))
    for psn, opcode, data in (
        (0x100, FIRST, FULL),
        (0x100, FIRST, b"f" * 1024),
        (0x101, MIDDLE, FULL),
        (0x101, MIDDLE, b"f" * 1024),
        (0x102, LAST, b"L" * 952),
        (0x102, LAST, b"l" * 952),
    ):
        fabric.inject(answer(opcode, psn, data), fabric.a)
    assert statuses(fabric.a.sends()) == [(1, OK)]
    assert bytes(fabric.a.mr.memory[:3000]) == FULL * 2 + b"L" * 952


@pytest.mark.parametrize("again", [FIRST, MIDDLE])
def test_a_missing_response_is_asked_for_once_and_resumed(again: Op) -> None:
    """Soft-RoCE goes on with a Middle where a First belongs."""
    fabric = sent((READ, 4000))
    fabric.inject(answer(FIRST, 0x100, FULL), fabric.a)
    for opcode, psn in ((MIDDLE, 0x102), (LAST, 0x103)):
        fabric.inject(answer(opcode, psn, FULL[: 1024 if opcode is MIDDLE else 928]), fabric.a)
    fabric.run(0.001)
    (resumed,) = fabric.log
    assert resumed.packet.bth.psn == 0x101
    assert resumed.packet.reth is not None
    assert resumed.packet.reth.va == fabric.b.mr.va + 1024
    assert resumed.packet.reth.length == 4000 - 1024
    for opcode, psn, size in ((again, 0x101, 1024), (MIDDLE, 0x102, 1024), (LAST, 0x103, 928)):
        fabric.inject(answer(opcode, psn, b"r" * size), fabric.a)
    assert statuses(fabric.a.sends()) == [(1, OK)]
    assert bytes(fabric.a.mr.memory[:4000]) == FULL + b"r" * 2976


def test_a_resumed_read_near_the_top_of_the_address_space() -> None:
    """No responder could have answered such a READ; one that does must not break us."""
    fabric = connect(link=lambda sent: ())
    a = fabric.a
    a.post(READ, a.sge(0, 3000), remote_addr=(1 << 64) - 1024, rkey=1)
    fabric.run(0.001)
    fabric.inject(answer(FIRST, 0x100, FULL), a)
    fabric.run(0.1)
    assert fabric.log[-1].packet.reth is not None
    assert (fabric.log[-1].packet.bth.psn, fabric.log[-1].packet.reth.va) == (0x101, 0)


@pytest.mark.parametrize("state", [QPState.IBV_QPS_RTR, QPState.IBV_QPS_RTS])
def test_answers_that_nothing_asked_for(state: QPState) -> None:
    fabric = connect()
    fabric.b.qp.state = state
    for opcode in (Op.ACKNOWLEDGE, ONLY, MIDDLE, Op.ATOMIC_ACKNOWLEDGE):
        for psn in (0x800200, 0x8001FF, 0):
            fabric.inject(answer(opcode, psn, b""))
    fabric.run()
    assert fabric.log == []
    assert fabric.b.qp.state is state
