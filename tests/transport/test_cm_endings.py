"""RDMA-CM connections that are rejected, end from both sides at once, or outlive their peer."""

from collections import Counter

import pytest

from rocemu.transport import (
    ConnectFailed,
    ConnectRequest,
    Disconnected,
    Established,
    QPAttr,
    Rejected,
)
from rocemu.transport.cm import CmError
from rocemu.transport.cm_states import CmState
from rocemu.verbs import QPAttrMask, QPState
from rocemu.wire import (
    CmDreq,
    CmRej,
    CmRep,
    CmReq,
    CmRtu,
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
    queue_pair,
    state_of,
)


def test_the_application_may_reject() -> None:
    world = World(serves=False)
    ours = world.connect()
    world.server.cm.reject(world.request(), private_data=b"not today", now=world.now)
    world.deliver()
    rejected = world.only(world.client, Rejected)
    assert rejected.connection is ours
    assert rejected.reason == RejReason.CONSUMER_DEFINED == 28
    assert rejected.private_data == b"not today".ljust(148, b"\0")
    assert state_of(ours) is QPState.IBV_QPS_ERR
    rej = world.sent[-1]
    assert isinstance(rej, CmRej)
    assert (rej.message, rej.remote_comm_id) == (0, ours.local_comm_id)


def test_a_lost_rej_is_sent_again_without_asking_the_application() -> None:
    world = World({CmRej: [0]}, serves=False)
    world.connect()
    world.server.cm.reject(world.request(), RejReason.NO_RESOURCES, now=world.now)
    world.advance(1)
    assert world.only(world.client, Rejected).reason == 3
    assert world.count(world.server, ConnectRequest) == 1


def test_nobody_listens_on_the_port() -> None:
    world = World()
    client = world.client
    client.cm.connect(queue_pair(client), SERVER, PORT + 1, access=READ_WRITE, now=world.now)
    world.deliver()
    assert world.only(client, Rejected).reason == RejReason.INVALID_SERVICE_ID == 8
    assert world.server.cm.connections == ()
    assert world.server.cm.counters == {"refused": 1}


def test_a_client_may_give_up_before_the_answer() -> None:
    world = World(serves=False)
    ours = world.connect()
    offer = world.request()
    world.client.cm.disconnect(ours, now=world.now)
    world.deliver()
    assert world.only(world.client, Disconnected).connection is ours
    assert world.only(world.server, Rejected).reason == RejReason.TIMEOUT
    with pytest.raises(CmError, match="not open: TIMEWAIT"):
        world.server.cm.accept(offer, queue_pair(world.server), access=READ_WRITE, now=world.now)


def test_a_rep_that_comes_too_late_is_refused() -> None:
    world = World({CmRej: [0]}, serves=False)
    world.client.cm.disconnect(world.connect(), now=world.now)
    theirs = world.accept()
    world.deliver()
    assert world.only(world.server, Rejected).reason == RejReason.INVALID_COMM_ID
    assert state_of(theirs) is QPState.IBV_QPS_ERR


def test_a_server_may_change_its_mind() -> None:
    world = World({CmRep: [0] * 100})
    ours = world.connect()
    world.server.cm.disconnect(world.request(), now=world.now)
    world.deliver()
    assert world.only(world.client, Rejected).connection is ours
    assert world.count(world.server, Disconnected) == 1


def test_a_server_may_disconnect_instead_of_deciding() -> None:
    world = World(serves=False)
    world.connect()
    world.server.cm.disconnect(world.request(), now=world.now)
    world.deliver()
    assert world.only(world.client, Rejected).reason == RejReason.CONSUMER_DEFINED


def test_both_disconnect_at_once() -> None:
    world = World()
    ours = world.connect()
    world.client.cm.disconnect(ours, now=world.now)
    world.server.cm.disconnect(world.request(), now=world.now)
    world.advance(60)
    assert world.count(world.client, Disconnected) == world.count(world.server, Disconnected) == 1
    assert Counter(world.kinds()[3:]) == {"DREQ": 2, "DREP": 2}


def test_disconnecting_again_does_nothing() -> None:
    world = World()
    ours = world.connect()
    for _ in range(3):
        world.client.cm.disconnect(ours, now=world.now)
        world.deliver()
    world.advance(60)
    world.client.cm.disconnect(ours, now=world.now)
    assert world.kinds()[3:] == ["DREQ", "DREP"]
    assert world.count(world.client, Disconnected) == 1


def test_a_dreq_before_the_rtu_ends_the_connection() -> None:
    world = World({CmRtu: [0] * 100})
    ours = world.connect()
    world.client.cm.disconnect(ours, now=world.now)
    world.deliver()
    assert world.kinds()[-2:] == ["DREQ", "DREP"]
    assert world.count(world.client, Disconnected) == world.count(world.server, Disconnected) == 1
    assert state_of(world.request()) is QPState.IBV_QPS_ERR


def test_a_queue_pair_reused_meanwhile_is_left_alone() -> None:
    world = World({CmDreq: [0] * 100})
    ours = world.connect()
    world.client.cm.disconnect(ours, now=world.now)
    qp = ours.qp
    assert qp is not None
    qp.modify(QPAttr(qp_state=QPState.IBV_QPS_RESET), QPAttrMask.IBV_QP_STATE)
    qp.modify(
        QPAttr(qp_state=QPState.IBV_QPS_INIT),
        QPAttrMask.IBV_QP_STATE
        | QPAttrMask.IBV_QP_PKEY_INDEX
        | QPAttrMask.IBV_QP_PORT
        | QPAttrMask.IBV_QP_ACCESS_FLAGS,
    )
    world.advance(60)
    assert world.count(world.client, Disconnected) == 1
    assert qp.state is QPState.IBV_QPS_INIT


def test_a_queue_pair_taken_away_while_connecting() -> None:
    world = World(serves=False)
    ours = world.connect()
    assert ours.qp is not None
    ours.qp.modify(QPAttr(qp_state=QPState.IBV_QPS_RESET), QPAttrMask.IBV_QP_STATE)
    world.accept()
    world.deliver()
    assert "IBV_QPS_RESET" in world.only(world.client, ConnectFailed).why
    assert world.only(world.server, Rejected).reason == RejReason.CONSUMER_DEFINED
    assert world.count(world.client, Established) == 0


def restarted(world: World, seed: int) -> None:
    """The client's process died without a word; a new one is at the same address."""
    old = world.client
    world.client = device(CLIENT, seed)
    world.events = {world.client: [], world.server: world.events[world.server]}
    assert old.next_event() is None


def test_a_restarted_client_gets_through() -> None:
    """Its queue pair has the old one's number: REJ 10, the old connection goes, a new one comes."""
    world = World()
    lost = world.connect()
    world.collect()
    restarted(world, seed=3)
    ours = world.connect()
    assert lost.qp is not None
    assert ours.qp is not None
    assert ours.qp.qp_num == lost.qp.qp_num
    (rej,) = [message for message in world.sent if isinstance(message, CmRej)]
    assert (rej.reason, rej.remote_comm_id) == (RejReason.STALE_CONNECTION, ours.local_comm_id)
    gone = world.only(world.server, Disconnected).connection
    assert gone.remote_comm_id == lost.local_comm_id
    world.advance(1)
    assert world.only(world.client, Established).connection is ours
    assert world.count(world.client, Rejected) == 0
    assert state_of(ours) is QPState.IBV_QPS_RTS


def test_a_restarted_client_that_repeats_itself_gets_through() -> None:
    """Seeded alike, it sends the same REQ: a copy for a while, then a peer without memory."""
    world = World()
    world.connect()
    world.collect()
    world.advance(10)
    restarted(world, seed=1)
    ours = world.connect()
    world.advance(4)
    assert world.only(world.client, Established).connection is ours
    assert world.count(world.server, Disconnected) == 1


def test_a_late_copy_of_the_req_does_not_disturb() -> None:
    world = World()
    world.connect()
    req = build_mad(world.sent[0])
    assert answers_to(world.server, req, now=world.now + 4) == []
    assert world.server.cm.counters == {"late": 1}
    assert world.request().state is CmState.ESTABLISHED


def test_a_server_that_never_lets_go_is_reported() -> None:
    world = World({CmReq: [0] * 100})
    ours = world.connect()
    rej = CmRej(remote_comm_id=ours.local_comm_id, reason=RejReason.STALE_CONNECTION)
    assert answers_to(world.client, build_mad(rej), source=SERVER, now=world.now) == []
    assert ours.state is CmState.REQ_SENT
    world.advance(60)
    assert world.only(world.client, Rejected).reason == RejReason.STALE_CONNECTION
