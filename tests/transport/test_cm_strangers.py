"""What the connection manager does with messages that fit no connection, and with any bytes."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.transport import (
    ConnectRequest,
    Disconnected,
    Established,
)
from rocemu.transport.cm_states import CmState
from rocemu.wire import (
    CM_MESSAGES,
    CmDrep,
    CmDreq,
    CmMra,
    CmRej,
    CmRep,
    CmReq,
    CmRtu,
    MadHeader,
    RejReason,
    build_mad,
)
from tests.transport.cm_world import (
    CLIENT,
    PORT,
    READ_WRITE,
    SERVER,
    World,
    answers_to,
    device,
    listener,
    queue_pair,
    req_of,
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"service_id": 0x01110000 + PORT}, RejReason.INVALID_SERVICE_ID),  # RDMA_PS_UDP
        ({"service_id": 0x01060000}, RejReason.INVALID_SERVICE_ID),
        ({"transport_type": 1}, RejReason.INVALID_TRANSPORT_TYPE),
        ({"transport_type": 3}, RejReason.INVALID_TRANSPORT_TYPE),
        ({"path_mtu": 0}, RejReason.INVALID_MTU),
        ({"path_mtu": 6}, RejReason.INVALID_MTU),
        ({"private_data": b"\x10\x40" + bytes(34)}, RejReason.UNSUPPORTED),
        ({"private_data": b"\x00\x50" + bytes(34)}, RejReason.UNSUPPORTED),
    ],
)
def test_a_req_that_cannot_become_a_connection(changes: dict[str, Any], reason: int) -> None:
    server = listener()
    (rej,) = answers_to(server, build_mad(req_of(**changes)))
    assert isinstance(rej, CmRej)
    assert (rej.message, rej.reason) == (0, reason)
    assert (rej.transaction_id, rej.remote_comm_id) == (0x123, 0xABC)
    assert server.next_event() is None
    assert server.cm.connections == ()


def test_a_req_of_another_class_version_is_told_ours() -> None:
    server = listener()
    mad = bytearray(build_mad(req_of()))
    mad[2] = 3
    (rej,) = answers_to(server, bytes(mad))
    assert (rej.reason, rej.remote_comm_id) == (RejReason.INVALID_CLASS_VERSION, 0xABC)
    assert (rej.info_length, rej.info[0]) == (1, 2)
    assert server.cm.counters["mad"] == 1


def test_the_backlog_bounds_undecided_requests() -> None:
    server = listener(backlog=2)
    for comm_id in (1, 2):
        assert answers_to(server, build_mad(req_of(local_comm_id=comm_id, local_qpn=comm_id))) == []
    third = build_mad(req_of(local_comm_id=3, local_qpn=3))
    (rej,) = answers_to(server, third)
    assert rej.reason == RejReason.NO_RESOURCES
    first = server.next_event()
    assert isinstance(first, ConnectRequest)
    server.cm.accept(first.connection, queue_pair(server), access=READ_WRITE, now=0.0)
    server.to_send(0.0)
    assert answers_to(server, third) == []  # room again
    assert len(server.cm.connections) == 3


def test_a_dreq_is_answered_whoever_sends_it() -> None:
    server = listener()
    dreq = CmDreq(transaction_id=9, local_comm_id=1, remote_comm_id=2, remote_qpn=3)
    (drep,) = answers_to(server, build_mad(dreq))
    assert drep == CmDrep(
        transaction_id=9, local_comm_id=2, remote_comm_id=1, private_data=bytes(224)
    )
    assert server.cm.counters == {"unknown": 1}


def test_a_rep_nobody_asked_for_is_refused() -> None:
    client = device(CLIENT, 1)
    rep = CmRep(transaction_id=9, local_comm_id=1, remote_comm_id=2)
    (rej,) = answers_to(client, build_mad(rep), source=SERVER)
    assert isinstance(rej, CmRej)
    assert (rej.reason, rej.message, rej.remote_comm_id) == (RejReason.INVALID_COMM_ID, 1, 1)


@pytest.mark.parametrize("message", [CmRtu, CmDrep, CmMra, CmRej])
def test_other_messages_without_a_connection_are_not_answered(message: Any) -> None:
    server = listener()
    assert answers_to(server, build_mad(message(local_comm_id=1, remote_comm_id=2))) == []
    assert server.cm.counters == {"unknown": 1}


def test_a_connection_is_ended_by_its_peer_alone() -> None:
    world = World()
    ours = world.connect()
    assert ours.qp is not None
    right: dict[str, Any] = {
        "local_comm_id": ours.remote_comm_id,
        "remote_comm_id": ours.local_comm_id,
        "remote_qpn": ours.qp.qp_num,
    }
    for source, change in (
        ("10.0.0.66", {}),
        (SERVER, {"local_comm_id": ours.remote_comm_id ^ 1}),
        (SERVER, {"remote_qpn": ours.qp.qp_num + 1}),
    ):
        answers = answers_to(world.client, build_mad(CmDreq(**(right | change))), source)
        assert [type(answer) for answer in answers] == [CmDrep]
        assert ours.state is CmState.ESTABLISHED
    assert world.client.cm.counters == {"unknown": 3}
    answers_to(world.client, build_mad(CmDreq(**right)), SERVER)
    assert world.only(world.client, Disconnected).connection is ours


def test_late_messages_are_counted() -> None:
    world = World()
    world.connect()
    rtu = build_mad(world.sent[2])
    assert answers_to(world.server, rtu) == []
    assert world.server.cm.counters == {"late": 1}


@given(st.binary(max_size=300) | st.binary(min_size=256, max_size=256))
def test_any_bytes_will_do(data: bytes) -> None:
    server = listener()
    answers_to(server, data)
    assert server.next_event() is None
    assert server.cm.counters["mad"] == 1


@given(data=st.data())
def test_any_message_in_any_state_will_do(data: st.DataObject) -> None:
    """Messages of any kind and content that name a real connection, from its peer."""
    world = World()
    ours = world.connect()
    if data.draw(st.booleans(), label="disconnect first"):
        world.client.cm.disconnect(ours, now=world.now)
        world.collect()
        world.client.to_send(world.now)
    for _ in range(data.draw(st.integers(1, 4), label="messages")):
        cls = data.draw(st.sampled_from(list(CM_MESSAGES.values())))
        body = bytearray(data.draw(st.binary(min_size=232, max_size=232)))
        body[0:8] = struct.pack(">II", ours.remote_comm_id, ours.local_comm_id)
        mad = MadHeader(attribute_id=cls.ATTRIBUTE).pack() + bytes(body)
        for answer in answers_to(world.client, mad, SERVER, world.now):
            assert not isinstance(answer, (CmReq, CmRep))
    world.client.handle_timer(world.now + 100)
    assert world.count(world.client, Established) == 1
    assert world.count(world.client, Disconnected) <= 1
