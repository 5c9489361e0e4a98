"""RDMA READ: responses in order, resumption, interruption, and the limit on how many at once."""

import pytest

from rocemu.transport import Violation
from rocemu.verbs import AsyncEventType, QPState, SendFlags, WCStatus, WROpcode
from rocemu.wire import AETH, RETH, Op
from tests.transport.fabric import (
    ALL,
    B_ADDRESS,
    LATENCY,
    Fabric,
    Sent,
    connect,
    drop,
    packet,
    statuses,
)

OK = WCStatus.IBV_WC_SUCCESS
WRITE, READ = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_READ
ADD = WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD
PMTU = 1024


def filled(fabric: Fabric, length: int) -> bytes:
    data = bytes(i * 7 % 251 for i in range(length))
    fabric.b.mr.memory[:length] = data
    return data


def read_requests(fabric: Fabric) -> list[tuple[int, int, int]]:
    """(PSN, offset in the peer's region, length) of the READ requests of side a."""
    return [
        (s.packet.bth.psn, s.packet.reth.va - fabric.b.mr.va, s.packet.reth.length)
        for s in fabric.log
        if s.packet.bth.opcode == Op.RDMA_READ_REQUEST and s.packet.reth is not None
    ]


@pytest.mark.parametrize("lost", range(4))
def test_a_lost_response_is_asked_for_from_its_place_on(lost: int) -> None:
    fabric = connect(link=drop(lost, source=B_ADDRESS))
    a, b = fabric.a, fabric.b
    data = filled(fabric, 3500)
    a.post(READ, a.sge(0, 3500), to=(b.mr, 0))
    fabric.run()
    assert read_requests(fabric) == [
        (0x100, 0, 3500),
        (0x100 + lost, lost * PMTU, 3500 - lost * PMTU),
    ]
    assert bytes(a.mr.memory[:3500]) == data
    assert statuses(a.sends()) == [(1, OK)]
    # A gap shows at the next response; only the last one needs the timer.
    assert (fabric.now > 0.06) == (lost == 3)


def test_a_lost_request_is_sent_again() -> None:
    fabric = connect(link=drop(0))
    a, b = fabric.a, fabric.b
    data = filled(fabric, 3000)
    a.post(READ, a.sge(0, 3000), to=(b.mr, 0))
    fabric.run()
    assert read_requests(fabric) == [(0x100, 0, 3000)] * 2
    assert bytes(a.mr.memory[:3000]) == data


def test_an_answer_to_a_later_request_is_an_implied_nak() -> None:
    """The READ's response is lost; the ACK of the WRITE behind it cannot complete it."""
    fabric = connect(link=drop(0, source=B_ADDRESS))
    a, b = fabric.a, fabric.b
    data = filled(fabric, 64)
    a.post(READ, a.sge(0, 64), wr_id=1, to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), wr_id=2, to=(b.mr, 512))
    fabric.run()
    assert fabric.wire(a) == [(0x0C, 0x100), (0x0A, 0x101)] * 2
    assert fabric.now < 0.001
    assert statuses(a.sends()) == [(1, OK), (2, OK)]
    assert bytes(a.mr.memory[:64]) == data


def test_reordered_responses_never_put_data_in_the_wrong_place() -> None:
    count = 0

    def link(sent: Sent) -> tuple[float, ...]:
        nonlocal count
        count += sent.source == B_ADDRESS
        return (LATENCY * (4 if sent.source == B_ADDRESS and count % 2 else 1),)

    fabric = connect(link=link)
    a, b = fabric.a, fabric.b
    data = filled(fabric, 6000)
    a.post(READ, a.sge(0, 6000), to=(b.mr, 0))
    fabric.run()
    assert bytes(a.mr.memory[:6000]) == data
    assert statuses(a.sends()) == [(1, OK)]


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (3, 3), (16, 6)])
def test_no_more_than_max_rd_atomic_are_outstanding(limit: int, expected: int) -> None:
    fabric = connect(a_attr={"max_rd_atomic": limit})
    a, b = fabric.a, fabric.b
    for wr_id in range(6):
        a.post((READ, ADD)[wr_id % 2], a.sge(8 * wr_id, 8), wr_id=wr_id, to=(b.mr, 8 * wr_id))
    a.post(WRITE, a.sge(0, 8), wr_id=6, to=(b.mr, 4096))
    ((_, packets),) = a.device.to_send(0.0)
    # What cannot start yet holds up everything behind it.
    assert len(packets) == (expected if limit < 6 else 7)
    for payload in packets:
        fabric.inject(payload)
    fabric.run()
    assert statuses(a.sends()) == [(wr_id, OK) for wr_id in range(7)]


def test_a_fence_waits_for_the_reads_before_it() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    fence = SendFlags.IBV_SEND_FENCE | SendFlags.IBV_SEND_SIGNALED
    filled(fabric, 8)
    before = bytes(b.mr.memory[:8])
    a.mr.memory[100:108] = b"new data"
    a.post(READ, a.sge(0, 8), wr_id=1, to=(b.mr, 0))
    a.post(WRITE, a.sge(100, 8), wr_id=2, to=(b.mr, 0), flags=fence)
    a.post(WRITE, a.sge(100, 8), wr_id=3, to=(b.mr, 8))
    ((_, packets),) = a.device.to_send(0.0)
    assert len(packets) == 1
    fabric.inject(packets[0])
    fabric.run()
    assert bytes(a.mr.memory[:8]) == before
    assert statuses(a.sends()) == [(1, OK), (2, OK), (3, OK)]


def test_a_fence_does_not_wait_for_writes() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    a.post(WRITE, a.sge(0, 8), to=(b.mr, 0))
    a.post(WRITE, a.sge(0, 8), to=(b.mr, 0), flags=SendFlags.IBV_SEND_FENCE)
    ((_, packets),) = a.device.to_send(0.0)
    assert len(packets) == 2


class TestRegionWithdrawnMidway:
    """The responder takes its region back between two packets of one message."""

    def test_read(self) -> None:
        """What was read is out; the first response that is not sent is NAKed."""
        fabric = connect()
        b = fabric.b
        mr = b.device.reg_mr(b.pd, bytearray(b"s" * 200 * PMTU), ALL)
        fabric.inject(packet(Op.RDMA_READ_REQUEST, 0x100, reth=RETH(mr.va, mr.rkey, 200 * PMTU)))
        ((_, packets),) = b.device.to_send(0.0)
        sent = len(packets)
        assert 0 < sent < 200
        b.device.dereg_mr(mr)
        fabric.run()
        assert fabric.syndromes(b) == [(0x62, 0x100 + sent, 0)]
        assert fabric.wire(b) == [(0x11, 0x100 + sent)]
        assert b.qp.state is QPState.IBV_QPS_ERR
        assert b.async_events() == [AsyncEventType.IBV_EVENT_QP_ACCESS_ERR]
        (violation,) = [event for event in b.events if isinstance(event, Violation)]
        assert violation.side == "remote"
        assert violation.verdict.causes[0] == "state"

    def test_read_as_the_requester_sees_it(self) -> None:
        fabric = connect()
        a, b = fabric.a, fabric.b
        mr = b.device.reg_mr(b.pd, bytearray(b"s" * 200 * PMTU), ALL)
        sink = a.device.reg_mr(a.pd, 200 * PMTU, ALL)
        a.post(READ, a.sge(0, 200 * PMTU, sink), wr_id=1, to=(mr, 0))
        a.post(WRITE, a.sge(0, 8), wr_id=2, to=(b.mr, 0))

        def link(sent: Sent) -> tuple[float, ...]:
            if sent.packet.bth.opcode == Op.RDMA_READ_RESPONSE_FIRST:
                b.device.dereg_mr(mr)
            return (LATENCY,)

        fabric.link = link
        fabric.run()
        assert statuses(a.sends()) == [
            (1, WCStatus.IBV_WC_REM_ACCESS_ERR),
            (2, WCStatus.IBV_WC_WR_FLUSH_ERR),
        ]
        assert len(read_requests(fabric)) == 1
        responses = len(fabric.wire(b)) - 1
        assert bytes(sink.memory[: responses * PMTU]) == b"s" * responses * PMTU
        assert bytes(sink.memory[responses * PMTU :]) == bytes((200 - responses) * PMTU)

    def test_read_that_is_owed_when_another_fault_has_ended_the_pair(self) -> None:
        fabric = connect()
        b = fabric.b
        mr = b.device.reg_mr(b.pd, 64, ALL)
        fabric.inject(packet(Op.RDMA_READ_REQUEST, 0x100, reth=RETH(mr.va, mr.rkey, 64)))
        fabric.inject(packet(Op.SEND_LAST, 0x101, b"x"))
        b.device.dereg_mr(mr)
        fabric.run()
        assert fabric.syndromes(b) == [(0x62, 0x100, 0)]
        assert b.async_events() == [AsyncEventType.IBV_EVENT_QP_REQ_ERR]

    @pytest.mark.parametrize("packets", [1, 2])
    def test_write(self, packets: int) -> None:
        fabric = connect()
        a, b = fabric.a, fabric.b
        mr = b.device.reg_mr(b.pd, 4096, ALL)
        a.mr.memory[:4096] = b"w" * 4096
        a.post(WRITE, a.sge(0, 4096), to=(mr, 0))
        ((_, sent),) = a.device.to_send(0.0)
        for payload in sent[:packets]:
            fabric.inject(payload)
        b.device.dereg_mr(mr)
        for payload in sent[packets:]:
            fabric.inject(payload)
        fabric.run()
        assert fabric.syndromes(b) == [(0x62, 0x100 + packets, 0)]
        assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_REM_ACCESS_ERR)]
        assert b.async_events() == [AsyncEventType.IBV_EVENT_QP_ACCESS_ERR]
        # No rollback, and nothing after.
        whole = packets * PMTU
        assert bytes(mr.memory) == b"w" * whole + bytes(4096 - whole)


def test_a_fatal_nak_with_the_requests_psn_after_some_responses_ends_the_read() -> None:
    """Soft-RoCE refuses a READ like this when its key was withdrawn midway."""
    fabric = connect(link=lambda sent: ())
    a = fabric.a
    a.post(WROpcode.IBV_WR_RDMA_READ, a.sge(0, 3000), to=(fabric.b.mr, 0))
    fabric._collect()
    first = packet(Op.RDMA_READ_RESPONSE_FIRST, 0x100, bytes(1024), aeth=AETH(0x1F, 1))
    fabric.inject(first, to=a)
    fabric.inject(packet(Op.ACKNOWLEDGE, 0x100, aeth=AETH(0x60, 0)), to=a)
    fabric.inject(packet(Op.ACKNOWLEDGE, 0x100, aeth=AETH(0x1F, 1)), to=a)
    assert a.sends() == []
    fabric.inject(packet(Op.ACKNOWLEDGE, 0x100, aeth=AETH(0x62, 0)), to=a)
    assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_REM_ACCESS_ERR)]
