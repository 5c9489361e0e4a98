"""Longer stories: what is said of them, and that right ones draw nothing."""

from __future__ import annotations

import pytest

from rocemu.capture import CapturedPacket
from rocemu.wire import Flow, Op
from tests.audit.cases import cnp, connect, disconnect
from tests.audit.talk import ETHERNET, MS, PMTU, US, VA, Talk


def texts(talk: Talk) -> list[tuple[str, tuple[int, ...], str]]:
    return [(finding.code, finding.packets, finding.text) for finding in talk.audit()]


def everything(t: Talk) -> None:
    """Each operation, of lengths around the path MTU, in both directions of the PSN's wrap."""
    for size in (0, 1, 4, PMTU - 1, PMTU, PMTU + 1, 3 * PMTU, 5 * PMTU - 1):
        t.send_message(size)
        t.write(size)
        t.read(size)
        t.atomic()
    for op in (
        Op.SEND_ONLY_WITH_IMMEDIATE,
        Op.SEND_ONLY_WITH_INVALIDATE,
        Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        Op.COMPARE_SWAP,
    ):
        t.ask(op)
        t.msn += 1
        kind = Op.ATOMIC_ACKNOWLEDGE if op == Op.COMPARE_SWAP else Op.ACKNOWLEDGE
        t.answer(kind, t.q - 1)
    t.ask(Op.FLUSH, length=4096)
    t.msn += 1
    t.answer(Op.RDMA_READ_RESPONSE_ONLY, t.q - 1)
    t.ask(Op.ATOMIC_WRITE, b"12345678")
    t.msn += 1
    t.answer(Op.RDMA_READ_RESPONSE_ONLY, t.q - 1)


@pytest.mark.parametrize("with_cm", [False, True], ids=["static", "cm"])
@pytest.mark.parametrize("start", [1000, 0xFFFFFF, 0xFFFFF0, 0])
@pytest.mark.parametrize("family", [4, 6])
def test_what_is_right_draws_nothing(start: int, with_cm: bool, family: int):
    t = Talk(q=start)
    if family == 6:
        t.there, t.back = Flow("fd00::1", "fd00::2", 0xC111), Flow("fd00::2", "fd00::1", 0xC222)
    if with_cm:
        connect(t)
    everything(t)
    if with_cm:
        disconnect(t)
    assert texts(t) == []


def test_the_msn_wraps():
    t = Talk(msn=0xFFFFFD)
    everything(t)
    assert texts(t) == []


def test_xrc_is_followed_as_rc_is():
    t = Talk()
    for _ in range(2):
        t.ask(0xA0, b"x" * PMTU)
        t.ask(0xA2, b"x")
        t.msn += 1
        t.answer(0xB1, t.q - 1)
    t.ask(0xA0, b"x" * PMTU)
    t.ask(0xA4, b"x")
    t.answer(0xB1, t.q - 1, syndrome=0x61)
    assert [code for code, _, _ in texts(t)] == ["opcode-sequence", "nak-invalid-request"]


def test_a_capture_that_begins_in_the_middle():
    t = Talk(msn=4711)
    t.ask(Op.RDMA_WRITE_MIDDLE, b"x" * PMTU)
    t.ask(Op.RDMA_WRITE_LAST, b"x" * 100)
    t.ack()
    everything(t)
    assert texts(t) == []


def test_answers_may_cover_many_requests_and_be_late():
    t = Talk()
    for _ in range(20):
        t.ask(Op.SEND_ONLY)
    t.ack(t.q - 11, count=10)
    t.ack(t.q - 1, count=10)
    t.answer(Op.ACKNOWLEDGE, t.q - 1)  # the newest once more: credits
    # an MSN that counts what came after the PSN is right, too
    for _ in range(3):
        t.ask(Op.SEND_ONLY)
    t.answer(Op.ACKNOWLEDGE, t.q - 3, msn=t.msn + 3)
    t.answer(Op.ACKNOWLEDGE, t.q - 1, msn=t.msn + 3)
    assert texts(t) == []


def test_go_back_n_after_a_sequence_nak():
    """PSNs 1001 to 1003; 1001 is lost behind the capture, all are sent again."""
    t = Talk()
    t.write()
    for _ in range(3):
        t.ask(Op.SEND_ONLY)
    t.nak(0x60, 1001)
    for psn in (1001, 1002, 1003):
        t.ask(Op.SEND_ONLY, psn=psn)
    t.ack(count=3)
    t.write()
    assert texts(t) == [
        (
            "nak-psn-sequence",
            (3, 6),
            "PSN 0x0003e9 is wanted: packet 3 has it: it was lost behind here",
        ),
        (
            "retransmission",
            (3, 7, 9),
            "PSN 0x0003e9 to 0x0003eb sent again, asked for by the NAK of packet 6",
        ),
    ]


def test_a_resend_may_begin_within_a_message():
    t = Talk()
    t.write()
    t.ask(Op.RDMA_WRITE_FIRST, b"x" * PMTU, length=3 * PMTU)
    t.ask(Op.RDMA_WRITE_MIDDLE, b"x" * PMTU)
    t.ask(Op.RDMA_WRITE_LAST, b"x" * PMTU)
    t.nak(0x60, t.q - 2)
    t.ask(Op.RDMA_WRITE_MIDDLE, b"x" * PMTU, psn=t.q - 2)
    t.ask(Op.RDMA_WRITE_LAST, b"x" * PMTU, psn=t.q - 1)
    t.ack()
    assert [code for code, _, _ in texts(t)] == ["nak-psn-sequence", "retransmission"]


def test_timeouts_are_told_with_the_time_since_each_sending():
    t = Talk()
    t.write()
    t.ask(Op.SEND_ONLY)
    t.wait(67 * MS)
    t.ask(Op.SEND_ONLY, psn=t.q - 1)
    t.wait(134 * MS)
    t.ask(Op.SEND_ONLY, psn=t.q - 1)
    t.ack()
    assert texts(t) == [
        (
            "retransmission",
            (3, 4),
            "PSN 0x0003e9 sent again, no answer had come 67.010 ms after it was sent",
        ),
        (
            "retransmission",
            (4, 5),
            "PSN 0x0003e9 sent again, no answer had come 134.010 ms after it was sent",
        ),
    ]


def test_an_rnr_wait_that_is_kept_and_one_that_is_broken():
    t = Talk()
    t.write()
    t.ask(Op.SEND_ONLY)
    t.nak(0x20 | 14, t.q - 1)
    t.wait(1500 * US)
    t.ask(Op.SEND_ONLY, psn=t.q - 1)
    t.nak(0x20 | 14, t.q - 1)
    t.wait(500 * US)
    t.ask(Op.SEND_ONLY, psn=t.q - 1)
    t.ack()
    found = texts(t)
    assert [code for code, _, _ in found if code != "rnr-nak"] == [
        "retransmission",
        "rnr-early",
        "retransmission",
    ]
    (kept, broken) = (text for code, _, text in found if code == "retransmission")
    assert "it asks for 1.28 ms, 1.510 ms passed, kept" in kept
    assert "it asks for 1.28 ms, 0.510 ms passed, broken" in broken
    early = next(text for code, _, text in found if code == "rnr-early")
    assert early == "sent again after 0.510 ms, the RNR NAK asks for 1.28 ms"


def test_a_read_is_resumed_where_it_broke_off():
    t = Talk()
    psn = t.q
    t.read(4 * PMTU, skip=(2, 3))
    t.wait(70 * MS)
    t.ask(Op.RDMA_READ_REQUEST, psn=psn + 2, length=2 * PMTU, va=VA + 2 * PMTU)
    t.respond(psn, 4 * PMTU, start=2)
    t.write()
    assert [code for code, _, _ in texts(t)] == ["retransmission"]


def test_a_read_resumed_at_a_wrong_address():
    t = Talk()
    psn = t.q
    t.read(4 * PMTU, skip=(2, 3))
    t.ask(Op.RDMA_READ_REQUEST, psn=psn + 2, length=2 * PMTU, va=VA)
    t.respond(psn, 4 * PMTU, start=2)
    found = texts(t)
    assert [code for code, _, _ in found] == ["retransmission-differs", "retransmission"]
    assert "goes on at 0x7f0000001000 with 2048 bytes, right would be 0x7f0000001800" in found[0][2]


def test_a_refused_read_in_the_middle():
    t = Talk()
    psn = t.q
    t.read(4 * PMTU, skip=(1, 2, 3))
    t.nak(0x62, psn + 1)
    (finding,) = t.audit()
    assert (finding.code, finding.packets) == ("nak-remote-access", (1, 3))
    assert "region without remote_read" in finding.text


def test_a_gap_from_a_wrong_icrc_names_the_packet():
    t = Talk()
    t.write()
    t.ask(Op.SEND_ONLY)
    frame = t.frames[-1]
    frame.data = frame.data[:-1] + bytes((frame.data[-1] ^ 1,))
    t.ask(Op.SEND_ONLY)
    t.nak(0x60, t.q - 2)
    t.ask(Op.SEND_ONLY, psn=t.q - 2)
    t.ask(Op.SEND_ONLY, psn=t.q - 1)
    t.ack(count=2)
    found = texts(t)
    assert [code for code, _, _ in found] == [
        "icrc-bad",
        "nak-psn-sequence",
        "psn-gap",
        "retransmission",
    ]
    assert found[2][1] == (1, 3, 4, 6)
    assert "(packet 3 has a wrong ICRC)" in found[2][2]


def test_everything_captured_twice():
    """A bridge or the interface 'any' shows packets twice: told, and nothing else goes wrong."""
    t = Talk()
    everything(t)
    t.frames = [
        CapturedPacket(frame.timestamp_ns + 3 * US * k, frame.data, frame.original_length, ETHERNET)
        for frame in t.frames
        for k in (0, 1)
    ]
    assert t.codes() == {"duplicate"}


def test_a_new_start_on_the_same_queue_pair():
    t = Talk(q=0x100)
    t.write()
    t.write()
    t.q, t.msn = 0x900000, 0
    everything(t)
    assert [code for code, _, _ in texts(t)] == ["psn-far"]


def test_a_connection_that_takes_a_queue_pair_over():
    t = Talk(q=0x100)
    connect(t)
    t.write()
    disconnect(t)
    t.q, t.msn = 0x900000, 0
    t.wait(MS)
    connect(t, comm=9)
    everything(t)
    assert texts(t) == []


def test_many_queue_pairs_with_the_same_psns():
    """Answers are taken by the exchange that waits for them, whatever the ports."""
    talks = [
        Talk(
            qpn_a=0x100 + k,
            qpn_b=0x200 + k,
            there=Flow("10.1.0.1", "10.1.0.2", 0xC100 + k),
            back=Flow("10.1.0.2", "10.1.0.1", 0xD100 + k),
        )
        for k in range(8)
    ]
    for t in talks:
        everything(t)
    merged = Talk()
    for row in zip(*(t.frames for t in talks), strict=True):
        merged.frames += row
    assert texts(merged) == []


def test_cnps_are_measured():
    t = Talk()
    for gap in (100, 20, 7, 60):
        cnp(t)
        t.wait(gap * US)
    cnp(t)
    ((code, packets, text),) = texts(t)
    assert (code, packets) == ("cnp-rate", (3, 4))
    assert text == "5 CNPs, the closest 17 us apart: DCQCN has one in 50 us"


def test_uc_loses_and_does_not_repeat():
    t = Talk()
    for op, size in ((0x20, PMTU), (0x21, PMTU), (0x22, 5), (0x24, 5)):
        t.ask(op, b"u" * size)
    t.q += 2
    t.ask(0x24, b"u")
    ((code, packets, text),) = texts(t)
    assert (code, packets) == ("psn-gap", (4, 5))
    assert text.endswith("UC sends nothing again")


SEND_FIRST, SEND_LAST, SEND_ONLY = Op.SEND_FIRST, Op.SEND_LAST, Op.SEND_ONLY
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST = (
    Op.RDMA_WRITE_FIRST,
    Op.RDMA_WRITE_MIDDLE,
    Op.RDMA_WRITE_LAST,
)


@pytest.mark.parametrize(
    ("ops", "wrong"),
    [
        ([SEND_FIRST, SEND_LAST], None),
        ([WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST], None),
        ([SEND_LAST], 0),
        ([WRITE_MIDDLE], 0),
        ([SEND_FIRST, WRITE_LAST], 1),
        ([WRITE_FIRST, SEND_LAST], 1),
        ([SEND_FIRST, SEND_FIRST], 1),
        ([SEND_FIRST, SEND_ONLY], 1),
        ([WRITE_FIRST, Op.RDMA_READ_REQUEST], 1),
        ([SEND_FIRST, Op.FETCH_ADD], 1),
        ([SEND_FIRST, SEND_LAST, SEND_LAST], 2),
    ],
)
def test_orders_of_opcodes(ops: list[int], wrong: int | None):
    t = Talk()
    t.write()
    numbers = []
    for op in ops:
        size = PMTU if op in (SEND_FIRST, WRITE_FIRST, WRITE_MIDDLE) else 5
        size = 0 if op in (Op.RDMA_READ_REQUEST, Op.FETCH_ADD) else size
        length = {WRITE_FIRST: sum((PMTU, PMTU * (WRITE_MIDDLE in ops), 5))}.get(op)
        numbers.append(t.ask(op, b"x" * size, length=length))
    found = [finding for finding in t.audit() if finding.code != "unfinished"]
    assert [finding.code for finding in found] == ["opcode-sequence"] * (wrong is not None)
    if wrong is not None:
        assert found[0].packets[-1] == numbers[wrong]


@pytest.mark.parametrize(
    ("op", "size", "wrong"),
    [
        (SEND_ONLY, PMTU, False),
        (SEND_ONLY, PMTU + 1, True),
        (Op.RDMA_WRITE_ONLY, PMTU + 1, True),
        (SEND_FIRST, 2 * PMTU, True),
        (SEND_FIRST, PMTU // 2, True),
        (SEND_FIRST, PMTU, False),
    ],
)
@pytest.mark.parametrize("with_cm", [False, True], ids=["learnt", "agreed on"])
def test_the_path_mtu(op: int, size: int, wrong: bool, with_cm: bool):
    t = Talk()
    if with_cm:
        connect(t)
    else:
        t.write(2 * PMTU)
    number = t.ask(op, b"x" * size)
    found = [f.packets for f in t.audit() if f.code == "pmtu"]
    assert found == ([(number,)] if wrong else [])


def test_a_nak_counts_no_message_behind_its_psn():
    t = Talk()
    t.write()
    t.ask(Op.RDMA_WRITE_ONLY, b"12345678")
    t.ask(Op.RDMA_WRITE_ONLY, b"12345678")
    t.nak(0x62, t.q - 2, msn=2)  # an ACK could say so, made late
    assert [code for code, _, _ in texts(t)] == ["msn", "nak-remote-access"]


def test_a_sequence_nak_again_after_the_packet_was_sent_again():
    t = Talk()
    t.write()
    t.ask(SEND_ONLY)
    t.ask(SEND_ONLY)
    for _ in range(2):  # lost behind the capture, and once more
        t.nak(0x60, t.q - 2)
        t.ask(SEND_ONLY, psn=t.q - 2)
        t.ask(SEND_ONLY, psn=t.q - 1)
    t.ack(count=2)
    assert [code for code, _, _ in texts(t)].count("nak-repeated") == 0


def test_a_middle_response_that_is_missing():
    t = Talk()
    t.read(6 * PMTU, skip=(3,))
    ((code, packets, text),) = texts(t)
    assert (code, packets) == ("read-response-gap", (1, 5))
    assert text == "response 5 of 6 comes, 4 was expected"


def test_a_gap_is_judged_when_it_is_answered_not_before():
    t = Talk()
    t.write()
    t.ask(SEND_ONLY)
    t.frames.pop()
    t.ask(SEND_ONLY)
    t.answer(Op.ACKNOWLEDGE, t.q - 3)  # the newest once more
    t.ack(count=2)
    ((code, packets, _),) = texts(t)
    assert (code, packets) == ("capture-gap", (1, 3, 5))


@pytest.mark.parametrize("bth", [{"becn": False}, {"fecn": True}, {"ackreq": True}, {"psn": 1}])
def test_forms_of_a_cnp(bth: dict[str, int]):
    t = Talk()
    cnp(t)
    t.wait(MS)
    number = cnp(t, **bth)
    ((code, packets, _),) = texts(t)
    assert (code, packets) == ("cnp-format", (number,))


def test_a_gap_that_holds_no_end_of_a_message():
    t = Talk()
    t.write()
    t.ask(WRITE_FIRST, b"x" * PMTU, length=2 * PMTU + 5)
    t.ask(WRITE_MIDDLE, b"x" * PMTU)
    t.frames.pop()
    t.ask(WRITE_LAST, b"x" * 5)
    t.answer(Op.ACKNOWLEDGE, t.q - 4)  # the newest once more
    t.ack()
    ((code, packets, _),) = texts(t)
    assert (code, packets) == ("capture-gap", (3, 4, 6))


def test_requesters_one_after_the_other_on_one_queue_pair():
    """Without the connection manager; the source port and the PSN tell them apart."""
    t = Talk()
    for k in range(5):
        t.q, t.msn = 1000, 0
        t.there, t.back = Flow(t.there.source, t.there.destination, 0xC300 + k), t.back
        t.qpn_a = 0x500 + k
        everything(t)
    assert texts(t) == []


def test_the_first_answer_may_be_to_what_was_never_sent():
    t = Talk()
    t.ask(SEND_ONLY)
    t.answer(Op.ACKNOWLEDGE, t.q + 4, msn=1)
    t.ask(SEND_ONLY)
    t.answer(Op.ACKNOWLEDGE, t.q - 1, msn=2)
    ((code, packets, text),) = texts(t)
    assert (code, packets) == ("ack-unsent", (2,))
    assert text == "an answer to PSN 0x0003ed, which was not sent before"
