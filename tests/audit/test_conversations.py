"""Pairing the two directions: by the connection manager, by the source QP, by behaviour."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.audit.conversations import Conversation, Conversations, End, Pairing, Placed
from rocemu.capture import decode_frame, open_capture
from rocemu.wire import (
    AETH,
    BTH,
    DETH,
    GSI_QKEY,
    RETH,
    CmDreq,
    CmMessage,
    CmRej,
    CmRep,
    CmReq,
    CmRtu,
    Op,
    Packet,
    WireError,
    build_mad,
    parse,
    parse_mad,
)
from tests.audit.made import golden_captures
from tests.wire.examples import packets

A, B = "10.0.0.1", "10.0.0.2"
Sent = tuple[str, str, Packet]


def captured(path: Path) -> Iterator[Sent]:
    with open_capture(path) as reader:
        for frame in reader:
            udp = decode_frame(frame.linktype, frame.data)
            if udp is None:
                continue
            try:
                packet = parse(udp.payload[:-4])
            except WireError:
                continue
            yield udp.flow.source, udp.flow.destination, packet


def place(sent: Iterable[Sent], conversations: Conversations | None = None) -> list[Placed]:
    conversations = conversations or Conversations()
    return [conversations.place(*packet) for packet in sent]


def ends(conversation: Conversation) -> tuple[tuple[str, int | None], ...]:
    return tuple((end.address, end.qpn) for end in conversation.ends)


def final(placed: Iterable[Placed]) -> dict[int, Conversation]:
    return {one.lane.conversation.number: one.lane.conversation for one in placed}


def request(qpn: int, psn: int, op: int = Op.SEND_ONLY, reth: RETH | None = None) -> Packet:
    return Packet(BTH(op, qpn, psn), reth=reth)


def answer(qpn: int, psn: int, syndrome: int = 0x1F) -> Packet:
    return Packet(BTH(Op.ACKNOWLEDGE, qpn, psn), aeth=AETH(syndrome, 0))


def mad(message: CmMessage) -> Packet:
    return Packet(BTH(0x64, 1, 0), build_mad(message), deth=DETH(GSI_QKEY, 1))


#: All but the hand-made packets, each of which goes to another queue pair, most without an answer.
answered = [path for path in golden_captures() if path.stem != "inject"]


@pytest.mark.parametrize("path", answered, ids=lambda path: path.stem)
def test_nothing_of_a_reliable_capture_stays_alone(path: Path) -> None:
    for conversation in final(place(captured(path))).values():
        if conversation.pairing is Pairing.NONE:
            assert path.stem == "uc_write"
        else:
            assert None not in [end.qpn for end in conversation.ends]


with_cm = [path for path in golden_captures() if path.stem in ("rping", "ucmatose")]


@pytest.mark.parametrize("path", with_cm, ids=lambda path: path.stem)
def test_behaviour_finds_what_the_connection_manager_says(path: Path) -> None:
    sent = list(captured(path))
    data = [packet for packet in sent if packet[2].deth is None]
    assert 20 < len(data) < len(sent)
    by_cm, by_behaviour = (
        [
            conversation
            for conversation in final(place(part)).values()
            if conversation.pairing is not Pairing.DETH
        ]
        for part in (sent, data)
    )
    assert [conversation.pairing for conversation in by_cm] == [Pairing.CM] * len(by_cm)
    assert {conversation.pairing for conversation in by_behaviour} == {Pairing.BEHAVIOUR}
    assert {frozenset(ends(one)) for one in by_cm} == {frozenset(ends(one)) for one in by_behaviour}


def interleaved(rng: random.Random, several: Iterable[list[Sent]]) -> Iterator[Sent]:
    queues = [iter(sent) for sent in several]
    while queues:
        queue = rng.choice(queues)
        try:
            yield next(queue)
        except StopIteration:
            queues.remove(queue)


def shifted(packet: Packet, by: int) -> Packet:
    return replace(packet, bth=replace(packet.bth, psn=packet.bth.psn + by & 0xFFFFFF))


@pytest.mark.parametrize("seed", range(5))
def test_thirty_conversations_at_once_between_the_same_two(seed: int) -> None:
    """The kernel's captures as if they had happened at the same time.  All begin at PSN 256: then
    what can be told apart is paired, and rightly; with the PSNs that adapters draw, all is."""
    rng = random.Random(seed)
    files: dict[frozenset[tuple[str, int | None]], list[Sent]] = {}
    for path in golden_captures():
        sent = list(captured(path))
        whole = final(place(sent))
        if len(whole) == 1 and whole[0].pairing is Pairing.BEHAVIOUR:
            files[frozenset(ends(whole[0]))] = sent
    assert len(files) > 25

    found = final(place(interleaved(rng, files.values()))).values()
    paired = {frozenset(ends(one)) for one in found if one.pairing is Pairing.BEHAVIOUR}
    assert paired <= set(files)

    moved = []
    for sent in files.values():
        by = rng.getrandbits(24)
        moved.append([(source, target, shifted(packet, by)) for source, target, packet in sent])
    found = final(place(interleaved(rng, moved))).values()
    assert {frozenset(ends(one)) for one in found} == set(files)


def test_an_answer_joins_the_lanes_and_the_sender_is_told() -> None:
    conversations = Conversations()
    first = conversations.place(A, B, request(0x22, 100))
    assert ends(first.conversation) == ((A, None), (B, 0x22))
    assert first.conversation.pairing is Pairing.NONE
    second = conversations.place(B, A, answer(0x11, 100))
    assert second.conversation is first.lane.conversation
    assert ends(second.conversation) == ((A, 0x11), (B, 0x22))
    assert (first.sender, second.sender) == (0, 1)
    assert (first.lane.peer, second.lane.peer) == (second.lane, first.lane)
    assert second.conversation.packets == 2
    assert conversations.place(A, B, request(0x33, 7)).conversation.number == 1


def test_requests_of_both_ends_are_joined_when_an_answer_comes() -> None:
    conversations = Conversations()
    left = conversations.place(A, B, request(0x22, 100))
    right = conversations.place(B, A, request(0x11, 900))
    assert left.conversation is not right.conversation
    conversations.place(A, B, answer(0x22, 900))
    assert right.lane.conversation is left.conversation
    assert (left.lane.sender, right.lane.sender) == (0, 1)
    assert right.conversation.joined == left.conversation.number
    assert ends(left.conversation) == ((A, 0x11), (B, 0x22))


@pytest.mark.parametrize("psn", [99, 111])
def test_an_answer_outside_of_what_was_asked_joins_nothing(psn: int) -> None:
    placed = place([(A, B, request(0x22, 100)), (A, B, request(0x22, 110)), (B, A, answer(1, psn))])
    assert len(final(placed)) == 2


def test_a_response_deep_within_a_read_is_its_answer() -> None:
    read = request(0x22, 0xFFFFFE, Op.RDMA_READ_REQUEST, RETH(0, 1, 256 * 10))
    last = Packet(BTH(Op.RDMA_READ_RESPONSE_LAST, 0x11, 7), aeth=AETH(0x1F, 1))
    assert len(final(place([(A, B, read), (B, A, last)]))) == 1
    last.bth.psn = 8
    assert len(final(place([(A, B, read), (B, A, last)]))) == 2


def test_of_several_the_next_answers_tell_which() -> None:
    conversations = Conversations()
    asked = [(A, B, request(qpn, psn)) for qpn in (0x22, 0x23) for psn in (5, 6)]
    place(asked, conversations)
    both = conversations.place(B, A, answer(0x11, 5))
    assert both.conversation.pairing is Pairing.NONE
    place([(A, B, request(0x23, 7))], conversations)
    one = conversations.place(B, A, answer(0x11, 7))
    assert ends(one.conversation) == ((A, 0x11), (B, 0x23))
    rest = conversations.place(B, A, answer(0x12, 5))
    assert ends(rest.conversation) == ((A, 0x12), (B, 0x22))


def test_addresses_matter_and_other_peers_do_not() -> None:
    placed = place([(A, B, request(0x22, 5)), ("10.0.0.3", A, answer(0x11, 5))])
    assert len(final(placed)) == 2


def test_two_queue_pairs_of_one_address() -> None:
    placed = place([(A, A, request(0x22, 5)), (A, A, answer(0x11, 5)), (A, A, request(0x22, 6))])
    assert len(final(placed)) == 1
    assert [one.sender for one in placed] == [0, 1, 0]


def test_a_request_that_was_sent_before_is_marked() -> None:
    psns = [5, 6, 7, 6, 7, 8, 4]
    placed = place((A, B, request(0x22, psn)) for psn in psns)
    assert [one.repeated for one in placed] == [False, False, False, True, True, False, False]
    wrapped = place((A, B, request(0x22, psn)) for psn in (0xFFFFFF, 0, 0xFFFFFF))
    assert [one.repeated for one in wrapped] == [False, False, True]


def test_a_read_does_not_make_what_follows_a_repetition() -> None:
    read = request(0x22, 5, Op.RDMA_READ_REQUEST, RETH(0, 1, 4096 * 4))
    placed = place([(A, B, read), (A, B, request(0x22, 9)), (A, B, request(0x22, 5))])
    assert [one.repeated for one in placed] == [False, False, True]


def test_a_new_start_far_away_is_no_repetition() -> None:
    placed = place((A, B, request(0x22, psn)) for psn in (0x600000, 0x100000, 0x100001))
    assert [one.repeated for one in placed] == [False, False, False]


REQ = CmReq(local_comm_id=7, local_qpn=0x11, starting_psn=900, transaction_id=1)
REP = CmRep(local_comm_id=8, remote_comm_id=7, local_qpn=0x22, starting_psn=100, transaction_id=1)


def connect(conversations: Conversations, req: CmReq = REQ, rep: CmRep = REP) -> list[Placed]:
    rtu = CmRtu(local_comm_id=req.local_comm_id, remote_comm_id=rep.local_comm_id)
    sent = [(A, B, mad(req)), (B, A, mad(rep)), (A, B, mad(rtu))]
    return place(sent, conversations)


def test_the_exchange_is_part_of_the_conversation_that_it_sets_up() -> None:
    conversations = Conversations()
    placed = connect(conversations)
    placed.append(conversations.place(B, A, request(0x11, 900)))
    placed.append(conversations.place(A, B, answer(0x22, 900)))
    dreq = CmDreq(local_comm_id=8, remote_comm_id=7, remote_qpn=0x11)
    placed.append(conversations.place(B, A, mad(dreq)))
    (conversation,) = final(placed).values()
    assert ends(conversation) == ((A, 0x11), (B, 0x22))
    assert conversation.pairing is Pairing.CM
    assert (conversation.req, conversation.rep) == (
        parse_mad(build_mad(REQ)),
        parse_mad(build_mad(REP)),
    )
    assert [one.sender for one in placed] == [0, 1, 0, 1, 0, 1]
    assert [type(one.cm).__name__ for one in placed[:3]] == ["CmReq", "CmRep", "CmRtu"]
    assert placed[3].cm is None


def test_repeated_cm_messages_change_nothing() -> None:
    conversations = Conversations()
    placed = connect(conversations) + connect(conversations)
    assert len(final(placed)) == 1


def test_a_queue_pair_used_again_is_another_conversation() -> None:
    conversations = Conversations()
    first = connect(conversations)
    before = conversations.place(B, A, request(0x11, 900))
    req = CmReq(local_comm_id=9, local_qpn=0x11, starting_psn=5, transaction_id=2)
    rep = CmRep(local_comm_id=10, remote_comm_id=9, local_qpn=0x22, transaction_id=2)
    second = connect(conversations, req, rep)
    after = conversations.place(B, A, request(0x11, 5))
    assert before.conversation is first[0].conversation
    assert after.conversation is second[0].conversation
    assert before.conversation is not after.conversation
    assert not after.repeated


def test_a_rejection_belongs_to_the_request() -> None:
    conversations = Conversations()
    (req,) = place([(A, B, mad(REQ))], conversations)
    rej = conversations.place(B, A, mad(CmRej(remote_comm_id=7, reason=28)))
    assert rej.conversation is req.conversation
    assert ends(rej.conversation) == ((A, 0x11), (B, None))


def test_cm_messages_of_an_exchange_that_was_not_captured_are_between_the_gsis() -> None:
    placed = place([(B, A, mad(REP)), (A, B, mad(CmRtu(local_comm_id=7, remote_comm_id=8)))])
    (conversation,) = final(placed).values()
    assert ends(conversation) == ((B, 1), (A, 1))
    assert conversation.pairing is Pairing.DETH


def test_ud_has_both_ends_in_every_packet() -> None:
    def ud(destination: int, source: int) -> Packet:
        return Packet(BTH(0x64, destination, 0), deth=DETH(1, source))

    placed = place([(A, B, ud(5, 6)), (B, A, ud(6, 5)), (A, B, ud(5, 7))])
    assert placed[0].conversation is placed[1].conversation
    assert [one.sender for one in placed] == [0, 1, 0]
    assert ends(placed[2].conversation) == ((A, 7), (B, 5))


def test_a_cnp_goes_along_with_the_answers() -> None:
    conversations = Conversations()
    place([(A, B, request(0x22, 5)), (B, A, answer(0x11, 5))], conversations)
    cnp = conversations.place(B, A, Packet(BTH(0x81, 0x11, 0, becn=True)))
    assert (cnp.conversation.number, cnp.sender) == (0, 1)


def test_what_is_remembered_is_bounded() -> None:
    conversations = Conversations(limit=10)
    for qpn in range(2, 500):
        conversations.place(A, B, request(qpn, 5))
        conversations.place(A, B, mad(CmReq(local_comm_id=qpn, local_qpn=qpn)))
    assert conversations.forgotten > 900
    assert len(conversations._lanes) <= 20
    assert len(conversations._connections) <= 10
    assert sum(map(len, conversations._single.values())) <= 20
    assert len(final([conversations.place(A, B, request(499, 6))])) == 1


def test_an_end_in_words() -> None:
    assert str(End(A, 0x11)) == "10.0.0.1 QP 0x11"
    assert str(End(A)) == "10.0.0.1 QP ?"


@given(
    st.lists(
        st.tuples(st.sampled_from([(A, B), (B, A), (A, A)]), packets(), st.integers(0, 3)),
        max_size=30,
    )
)
def test_any_packets_have_a_place_with_an_end_that_sent_them(sent) -> None:
    conversations = Conversations(limit=4)
    for (source, destination), packet, qpn in sent:
        packet.bth.dest_qp, packet.bth.psn = qpn, packet.bth.psn & 3
        if packet.deth is not None:
            packet.deth.source_qp = qpn ^ 1
        placed = conversations.place(source, destination, packet)
        both = placed.conversation.ends
        assert (both[placed.sender].address, both[1 - placed.sender].address) == (
            source,
            destination,
        )
        assert both[1 - placed.sender].qpn == qpn
        assert placed.lane.conversation is placed.conversation
