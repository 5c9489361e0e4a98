"""RDMA-CM when messages are lost or doubled, answers are slow, or nobody is there."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.transport import (
    ConnectFailed,
    ConnectRequest,
    Disconnected,
    Established,
    Rejected,
)
from rocemu.transport.cm_states import CmState
from rocemu.verbs import QPState
from rocemu.wire import (
    CM_MESSAGES,
    CmDrep,
    CmDreq,
    CmMessage,
    CmRej,
    CmRep,
    CmReq,
    CmRtu,
    build_mad,
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

FIVE = [CmReq, CmRep, CmRtu, CmDreq, CmDrep]


def live_and_part(world: World) -> None:
    """A whole life of a connection under the world's fates; both sides see each event once."""
    ours = world.connect()
    world.advance(3)
    for owner in world.events:
        assert world.count(owner, Established) == 1
    assert world.count(world.server, ConnectRequest) == 1
    assert state_of(ours) is QPState.IBV_QPS_RTS
    world.client.cm.disconnect(ours, now=world.now)
    world.advance(3)
    for owner in world.events:
        assert world.count(owner, Disconnected) == 1
        assert world.count(owner, ConnectFailed) == world.count(owner, Rejected) == 0
    world.advance(60)
    assert world.client.cm.connections == world.server.cm.connections == ()


@pytest.mark.parametrize("kind", FIVE)
def test_every_message_may_be_lost(kind: type[CmMessage]) -> None:
    world = World({kind: [0, 0]})
    live_and_part(world)
    assert world.kinds().count(kind.ATTRIBUTE.name) == 3


@pytest.mark.parametrize("kind", FIVE)
def test_every_message_may_come_twice(kind: type[CmMessage]) -> None:
    world = World({kind: [2]})
    live_and_part(world)
    expected = Counter({name.ATTRIBUTE.name: 1 for name in FIVE})
    answers = {CmReq: CmRep, CmRep: CmRtu, CmDreq: CmDrep}
    if kind is CmReq:  # the second finds the application undecided, which takes an MRA
        expected["MRA"] += 1
    elif kind in answers:
        expected[answers[kind].ATTRIBUTE.name] += 1
    assert Counter(world.kinds()) == expected


def test_a_repeated_message_gets_the_same_answer() -> None:
    world = World({CmRep: [0], CmRtu: [0]})
    world.connect()
    world.advance(3)
    reps = [build_mad(m) for m in world.sent if isinstance(m, CmRep)]
    rtus = [build_mad(m) for m in world.sent if isinstance(m, CmRtu)]
    assert len(reps) > 1
    assert len(rtus) > 1
    assert len(set(reps)) == len(set(rtus)) == 1


@given(
    fates=st.fixed_dictionaries({k: st.lists(st.integers(0, 2), max_size=3) for k in FIVE}),
    server_parts=st.booleans(),
)
def test_under_any_loss_each_side_hears_everything_once(
    fates: dict[type[CmMessage], list[int]], server_parts: bool
) -> None:
    # Three losses of each are within the eight tries of whoever waits; nine times 0.54 s pass.
    world = World(fates)
    ours = world.connect()
    world.advance(5)
    assert world.count(world.client, Established) == world.count(world.server, Established) == 1
    world.client.cm.disconnect(ours, now=world.now)
    if server_parts:
        world.server.cm.disconnect(world.request(), now=world.now)
    world.advance(60)
    for owner in world.events:
        assert world.count(owner, Disconnected) == 1
        assert owner.cm.connections == ()
        assert owner.next_timer() is None


@given(st.integers(0, 10**9), st.sampled_from([0.3, 0.7, 1.0]))
def test_however_bad_the_network_it_ends(seed: int, loss: float) -> None:
    rng = random.Random(seed)
    fates = {
        kind: [0 if rng.random() < loss else rng.choice((1, 2)) for _ in range(40)]
        for kind in CM_MESSAGES.values()
    }
    world = World(fates)
    ours = world.connect()
    world.advance(rng.uniform(0, 10))
    world.client.cm.disconnect(ours, now=world.now)
    world.advance(60)
    assert ours.state is CmState.CLOSED
    # The server may be left with a connection whose end it never heard of, as with any network.
    for connection in world.server.cm.connections:
        assert connection.state is CmState.ESTABLISHED
        world.server.cm.disconnect(connection, now=world.now)
    world.advance(60)
    assert world.server.cm.connections == ()
    for owner in world.events:
        assert owner.next_timer() is None
        ends = sum(world.count(owner, kind) for kind in (Disconnected, ConnectFailed, Rejected))
        started = 1 if owner is world.client else world.count(owner, ConnectRequest)
        assert ends == started
        assert world.count(owner, Established) <= started


def test_a_slow_application_is_waited_for() -> None:
    """MRA: a repeated REQ that finds the application undecided asks for time."""
    world = World(serves=False)
    ours = world.connect()
    world.advance(12)
    assert set(world.kinds()) == {"REQ", "MRA"}
    assert world.kinds().count("REQ") == 2
    world.accept()
    world.deliver()
    assert world.only(world.client, Established).connection is ours
    assert world.count(world.server, ConnectRequest) == 1


def test_the_first_packet_replaces_a_lost_rtu() -> None:
    world = World({CmRtu: [0] * 100})
    world.connect()
    theirs = world.request()
    assert world.count(world.server, Established) == 0
    assert theirs.qp is not None
    world.server.cm.connection_established(theirs.qp)
    assert world.only(world.server, Established).connection is theirs
    world.server.cm.connection_established(theirs.qp)
    world.advance(10)
    assert world.count(world.server, Established) == 1
    assert world.kinds().count("REP") == 1  # nothing more to wait for


def test_a_silent_peer_is_reported_within_seconds() -> None:
    world = World({CmReq: [0] * 100})
    ours = world.connect()
    begun = world.now
    world.advance(60)
    failed = world.only(world.client, ConnectFailed)
    assert failed.connection is ours
    assert failed.why == f"no answer from {SERVER} port {PORT} after 8 tries"
    assert state_of(ours) is QPState.IBV_QPS_ERR
    assert world.kinds() == ["REQ"] * 8 + ["REJ"]  # the REJ: if you heard me after all, forget it
    assert begun + 60 == world.now


@pytest.mark.parametrize(("code", "retries"), [(17, 7), (20, 2)])
def test_timeout_and_retries_are_parameters(code: int, retries: int) -> None:
    client = device(CLIENT, 1)
    cm = type(client.cm)(client, response_timeout=code, max_retries=retries)
    cm.connect(queue_pair(client), SERVER, PORT, access=READ_WRITE, now=0.0)
    times = []
    while (when := cm.next_timer()) is not None and cm.connections[0].state is CmState.REQ_SENT:
        times.append(when)
        cm.handle_timer(when)
    step = 4.096e-6 * 2**code
    assert times == pytest.approx([step * n for n in range(1, retries + 2)])
    events = []
    while event := client.next_event():
        events.append(event)
    assert isinstance(events[-1], ConnectFailed)
    assert events[-1].why.endswith(f"after {retries + 1} tries")


def test_a_port_that_is_closed_fails_at_once() -> None:
    world = World({CmReq: [0] * 100})
    ours = world.connect()
    world.client.unreachable("10.0.0.99", world.now)
    assert world.count(world.client, ConnectFailed) == 0
    world.client.unreachable(SERVER, world.now)
    failed = world.only(world.client, ConnectFailed)
    assert failed.connection is ours
    assert failed.why == f"nobody listens on UDP 4791 at {SERVER}"
    assert state_of(ours) is QPState.IBV_QPS_ERR
    assert world.client.cm.connections == ()
    world.advance(60)
    assert world.count(world.client, ConnectFailed) == 1


def test_unreachable_leaves_what_waits_for_nothing() -> None:
    world = World()
    ours = world.connect()
    world.client.cm.unreachable(SERVER)
    assert ours.state is CmState.ESTABLISHED


def test_disconnecting_from_a_peer_that_is_gone() -> None:
    world = World({CmDreq: [0] * 100})
    ours = world.connect()
    world.client.cm.disconnect(ours, now=world.now)
    world.deliver()
    assert world.count(world.client, Disconnected) == 0
    world.client.cm.unreachable(SERVER)
    assert world.only(world.client, Disconnected).connection is ours
    assert ours.state is CmState.CLOSED


def test_a_dreq_that_is_never_answered_ends_all_the_same() -> None:
    world = World({CmDreq: [0] * 100})
    ours = world.connect()
    world.client.cm.disconnect(ours, now=world.now)
    world.advance(60)
    assert world.kinds().count("DREQ") == 8
    assert world.only(world.client, Disconnected).connection is ours


def test_an_rtu_that_never_comes() -> None:
    world = World({CmRep: [0] * 100, CmRej: [0] * 100, CmReq: [1] + [0] * 100})
    world.connect()
    theirs = world.request()
    world.advance(60)
    assert world.only(world.server, ConnectFailed).why == f"no RTU from {CLIENT} after 8 tries"
    assert state_of(theirs) is QPState.IBV_QPS_ERR


def test_a_server_that_gave_up_takes_the_clients_connection_down() -> None:
    world = World({CmRtu: [0] * 100})
    ours = world.connect()
    assert world.count(world.client, Established) == 1
    world.advance(60)
    assert world.count(world.server, ConnectFailed) == 1
    assert world.only(world.client, Disconnected).connection is ours
    assert state_of(ours) is QPState.IBV_QPS_ERR
