"""Completion notification and solicited events ([IBTA] 11.4.2.2, ``ibv_req_notify_cq``)."""

import pytest

from rocemu.transport import CompletionEvent
from rocemu.verbs import SendFlags, WROpcode
from tests.transport.fabric import Fabric, Side, connect

SEND = WROpcode.IBV_WR_SEND
SIGNALED, SOLICITED = SendFlags.IBV_SEND_SIGNALED, SendFlags.IBV_SEND_SOLICITED


def told(side: Side) -> int:
    side.drain_events()
    events = [event for event in side.events if isinstance(event, CompletionEvent)]
    side.events.clear()
    assert all(event.cq is side.recv_cq for event in events)
    return len(events)


def send(fabric: Fabric, flags: SendFlags = SIGNALED) -> None:
    fabric.b.recv(1, fabric.b.sge(0, 64))
    fabric.a.post(SEND, fabric.a.sge(0, 8), flags=flags)
    fabric.run()


def test_nothing_is_told_unasked() -> None:
    fabric = connect()
    send(fabric)
    assert told(fabric.b) == 0


def test_the_next_completion_is_told_once() -> None:
    fabric = connect()
    fabric.b.recv_cq.request_notify()
    send(fabric)
    send(fabric)
    assert told(fabric.b) == 1
    assert len(fabric.b.recv_cq) == 2


@pytest.mark.parametrize("imm", [False, True])
def test_solicited_only_waits_for_a_solicited_message(imm: bool) -> None:
    fabric = connect()
    fabric.b.recv_cq.request_notify(solicited_only=True)
    send(fabric)
    assert told(fabric.b) == 0
    fabric.b.recv(2, fabric.b.sge(0, 64))
    if imm:
        opcode = WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM
        fabric.a.post(opcode, fabric.a.sge(0, 8), flags=SOLICITED, to=(fabric.b.mr, 0))
    else:
        fabric.a.post(SEND, fabric.a.sge(0, 8), flags=SOLICITED)
    fabric.run()
    assert told(fabric.b) == 1


def test_an_error_counts_as_solicited() -> None:
    fabric = connect()
    fabric.b.recv(1, fabric.b.sge(0, 64))
    fabric.b.recv_cq.request_notify(solicited_only=True)
    fabric.b.qp.enter_error()
    assert told(fabric.b) == 1


def test_asking_for_any_is_not_narrowed_by_asking_for_solicited() -> None:
    fabric = connect()
    fabric.b.recv_cq.request_notify()
    fabric.b.recv_cq.request_notify(solicited_only=True)
    send(fabric)
    assert told(fabric.b) == 1
