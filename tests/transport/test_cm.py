"""RDMA-CM: who connects, what is agreed on, what a caller is told; and the table itself."""

from collections import Counter

import pytest

from rocemu.transport import (
    ConnectRequest,
    Datagram,
    Device,
    Disconnected,
    Established,
    QPAttr,
    QPError,
    QueuePair,
)
from rocemu.transport.cm import CmError
from rocemu.transport.cm_states import TRANSITIONS, CmAction, CmInput, CmState
from rocemu.verbs import MTU, AccessFlags, QPAttrMask, QPState
from rocemu.wire import (
    CmRep,
    CmReq,
    IpCmHeader,
    gid_of,
)
from tests.transport.cm_world import (
    CLIENT,
    PORT,
    READ_WRITE,
    SERVER,
    World,
    device,
    queue_pair,
    state_of,
)


def test_connect_and_disconnect_is_five_messages() -> None:
    world = World()
    ours = world.connect()
    theirs = world.request()
    assert world.kinds() == ["REQ", "REP", "RTU"]
    assert state_of(ours) is state_of(theirs) is QPState.IBV_QPS_RTS
    assert world.only(world.client, Established).connection is ours
    assert world.only(world.server, Established).connection is theirs
    assert (ours.remote_qpn, theirs.remote_qpn) == (theirs.qp.qp_num, ours.qp.qp_num)

    world.client.cm.disconnect(ours, now=world.now)
    assert state_of(ours) is QPState.IBV_QPS_ERR  # before the DREQ leaves
    world.deliver()
    assert world.kinds()[3:] == ["DREQ", "DREP"]
    assert state_of(theirs) is QPState.IBV_QPS_ERR
    assert world.only(world.client, Disconnected).connection is ours
    assert world.only(world.server, Disconnected).connection is theirs

    world.advance(60)
    assert world.client.cm.connections == world.server.cm.connections == ()
    assert world.client.next_timer() is world.server.next_timer() is None
    assert ours.state is theirs.state is CmState.CLOSED
    assert world.client.cm.counters == world.server.cm.counters == Counter()


def test_the_server_may_disconnect_too() -> None:
    world = World()
    ours = world.connect()
    world.server.cm.disconnect(world.request(), now=world.now)
    world.deliver()
    assert world.kinds()[3:] == ["DREQ", "DREP"]
    assert world.only(world.client, Disconnected).connection is ours
    assert state_of(ours) is QPState.IBV_QPS_ERR
    assert world.count(world.server, Disconnected) == 1


def test_what_the_two_sides_agree_on() -> None:
    """Reference 7.3: every field lands where the peer's queue pair needs it."""
    world = World(serves=False)
    ours = world.connect(
        b"what I want",
        responder_resources=3,
        initiator_depth=9,
        path_mtu=MTU.IBV_MTU_4096,
        retry_count=5,
        rnr_retry=4,
        ack_timeout=15,
        min_rnr_timer=11,
        access=READ_WRITE,
    )
    (req,) = world.sent
    assert isinstance(req, CmReq)
    offer = world.request()
    assert (offer.peer_address, offer.port) == (CLIENT, PORT)
    assert offer.private_data == b"what I want".ljust(56, b"\0")
    assert offer.remote_qpn == ours.qp.qp_num
    assert (offer.responder_resources, offer.initiator_depth) == (9, 3)  # crossed
    theirs = world.accept(
        b"what I have",
        responder_resources=4,
        initiator_depth=2,
        rnr_retry=2,
        min_rnr_timer=12,
        access=AccessFlags.IBV_ACCESS_REMOTE_READ,
    )
    assert state_of(theirs) is QPState.IBV_QPS_RTS
    assert len(world.sent) == 1  # in RTS before the REP leaves
    world.deliver()
    rep = world.sent[1]
    assert isinstance(rep, CmRep)
    assert ours.private_data == b"what I have".ljust(196, b"\0")

    client, server = ours.qp.attr, theirs.qp.attr
    assert (client.max_rd_atomic, server.max_dest_rd_atomic) == (4, 4)
    assert (client.max_dest_rd_atomic, server.max_rd_atomic) == (2, 2)
    # A starting PSN is what the sender of the message expects first.
    assert client.rq_psn == server.sq_psn == req.starting_psn
    assert client.sq_psn == server.rq_psn == rep.starting_psn
    assert req.starting_psn != rep.starting_psn
    assert client.path_mtu == server.path_mtu == MTU.IBV_MTU_4096
    assert client.timeout == server.timeout == 15
    assert client.retry_cnt == server.retry_cnt == 5
    assert (client.rnr_retry, server.rnr_retry) == (2, 4)  # ours lowered by the REP's; the REQ's
    assert (client.min_rnr_timer, server.min_rnr_timer) == (11, 12)
    assert client.qp_access_flags == READ_WRITE
    assert server.qp_access_flags == AccessFlags.IBV_ACCESS_REMOTE_READ
    assert (client.av.address, server.av.address) == (SERVER, CLIENT)
    assert client.av.flow_label == server.av.flow_label == req.primary_flow_label


def test_a_cm_made_queue_pair_has_the_kernels_rnr_timer() -> None:
    world = World()
    ours = world.connect()
    assert ours.qp.attr.min_rnr_timer == 0  # 655 ms


def test_the_req_of_a_client() -> None:
    world = World()
    world.connect(b"user", path_mtu=MTU.IBV_MTU_2048)
    req = world.sent[0]
    assert isinstance(req, CmReq)
    assert req.service_id == 0x1060000 + PORT
    assert (req.primary_local_gid, req.primary_remote_gid) == (gid_of(CLIENT), gid_of(SERVER))
    assert (req.primary_local_lid, req.primary_remote_lid) == (0xFFFF, 0xFFFF)
    assert req.primary_hop_limit > 1
    assert (req.transport_type, req.path_mtu, req.partition_key) == (0, 4, 0xFFFF)
    ip = IpCmHeader.unpack(req.private_data)
    assert (ip.cma_version, ip.ip_version) == (0, 4)
    assert (ip.source_address, ip.destination_address) == (CLIENT, SERVER)
    assert req.private_data[36:] == b"user".ljust(56, b"\0")
    assert {message.transaction_id for message in world.sent} == {req.transaction_id}


def test_a_second_connection_is_independent_of_the_first() -> None:
    world = World()
    first, second = world.connect(), world.connect()
    assert first.local_comm_id != second.local_comm_id
    world.client.cm.disconnect(first, now=world.now)
    world.deliver()
    assert state_of(first) is QPState.IBV_QPS_ERR
    assert state_of(second) is QPState.IBV_QPS_RTS
    assert world.only(world.server, Disconnected).connection.remote_comm_id == first.local_comm_id


def test_over_ipv6() -> None:
    client, server = device("2001:db8::1", 1), device("2001:db8::2", 2)
    server.cm.listen(PORT)
    client.cm.connect(queue_pair(client), "2001:db8:0::2", PORT, access=READ_WRITE, now=0.0)
    ((flow, (packet,)),) = client.to_send(0.0)
    assert flow.destination == "2001:db8::2"
    server.receive([Datagram(packet, "2001:db8::1", "2001:db8::2")], 0.0)
    event = server.next_event()
    assert isinstance(event, ConnectRequest)
    assert event.connection.peer_address == "2001:db8::1"


def test_mistakes_of_the_caller_are_told() -> None:
    world = World(serves=False)
    cm = world.client.cm
    qp = queue_pair(world.client)
    with pytest.raises(CmError, match="57 bytes: a REQ holds 56"):
        cm.connect(qp, SERVER, PORT, bytes(57), access=READ_WRITE, now=0.0)
    with pytest.raises(ValueError, match="not of one IP version"):
        cm.connect(qp, "::1", PORT, access=READ_WRITE, now=0.0)
    with pytest.raises(ValueError, match="retry_count: 8"):
        cm.connect(qp, SERVER, PORT, retry_count=8, access=READ_WRITE, now=0.0)
    assert qp.state is QPState.IBV_QPS_RESET
    assert cm.connections == ()
    with pytest.raises(CmError, match="port 7174 is listened on already"):
        world.server.cm.listen(PORT)
    with pytest.raises(CmError, match="allowed are 1 to 65535"):
        world.server.cm.listen(0)

    world.connect()
    offer = world.request()
    with pytest.raises(CmError, match="197 bytes: a REP holds 196"):
        world.accept(bytes(197))
    with pytest.raises(CmError, match="149 bytes: a REJ holds 148"):
        world.server.cm.reject(offer, private_data=bytes(149), now=world.now)
    with pytest.raises(ValueError, match="rnr_retry_count: 8"):
        world.accept(rnr_retry=8)
    assert offer.state is CmState.REQ_RCVD
    assert {qp.state for qp in world.server.qps.values()} == {QPState.IBV_QPS_RESET}
    world.accept()
    with pytest.raises(CmError, match="not open: REP_SENT"):
        world.accept()


def test_a_queue_pair_in_the_wrong_state_leaves_the_request_open() -> None:
    world = World(serves=False)
    ours = world.connect()
    with pytest.raises(QPError):
        world.server.cm.accept(world.request(), used(world.server), access=READ_WRITE, now=0.0)
    world.accept()
    world.deliver()
    assert world.only(world.client, Established).connection is ours


def used(owner: Device) -> QueuePair:
    """A queue pair in ERR."""
    qp = queue_pair(owner)
    for state, mask in (
        (QPState.IBV_QPS_INIT, QPAttrMask.IBV_QP_PKEY_INDEX | QPAttrMask.IBV_QP_PORT),
        (QPState.IBV_QPS_ERR, QPAttrMask(0)),
    ):
        access = QPAttrMask.IBV_QP_ACCESS_FLAGS if mask else QPAttrMask(0)
        qp.modify(QPAttr(qp_state=state), QPAttrMask.IBV_QP_STATE | mask | access)
    return qp


def test_a_queue_pair_may_be_in_init_already() -> None:
    """So that receives can be posted before the connection is there."""
    world = World()
    qp = queue_pair(world.client)
    init = (
        QPAttrMask.IBV_QP_STATE
        | QPAttrMask.IBV_QP_PKEY_INDEX
        | QPAttrMask.IBV_QP_PORT
        | QPAttrMask.IBV_QP_ACCESS_FLAGS
    )
    qp.modify(QPAttr(qp_state=QPState.IBV_QPS_INIT), init)
    world.client.cm.connect(qp, SERVER, PORT, access=READ_WRITE, now=world.now)
    world.deliver()
    assert qp.state is QPState.IBV_QPS_RTS
    assert qp.attr.qp_access_flags == READ_WRITE


def test_every_state_is_reached_and_ends() -> None:
    after: dict[CmState, set[CmState]] = {state: set() for state in CmState}
    for (state, _), step in TRANSITIONS.items():
        after[state].add(step.state)

    def reached(begin: CmState) -> set[CmState]:
        seen, todo = {begin}, [begin]
        while todo:
            new = after[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    assert reached(CmState.IDLE) == set(CmState)
    assert all(CmState.CLOSED in reached(state) for state in CmState)
    assert {step.action for step in TRANSITIONS.values()} - {None} == set(CmAction)
    assert {what for _, what in TRANSITIONS} == set(CmInput)


@pytest.mark.parametrize("state", [CmState.REQ_SENT, CmState.REP_SENT, CmState.DREQ_SENT])
def test_what_waits_can_run_out(state: CmState) -> None:
    for what in (CmInput.TIMEOUT, CmInput.EXHAUSTED, CmInput.UNREACHABLE):
        assert (state, what) in TRANSITIONS
