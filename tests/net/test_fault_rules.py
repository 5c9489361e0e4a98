"""Fault rules: what each selects, what it does, and what is wrong with those that are none."""

import random

import pytest

from rocemu.net import FaultError, FaultRule
from rocemu.net.faults import LONGEST_HOLD, FaultLine, Passing
from rocemu.net.rules import Direction, parse_time
from rocemu.transport import AddressVector, Device, QPAttr, QPInitAttr
from rocemu.verbs import QPAttrMask, QPState
from rocemu.wire import (
    AETH,
    BTH,
    RETH,
    Flow,
    IcrcMatch,
    NakCode,
    Op,
    Packet,
    build,
    nak_syndrome,
    rnr_syndrome,
    seal,
    verify,
)

OUT = Flow("192.0.2.1", "192.0.2.2", 50000)
BACK = Flow("192.0.2.2", "192.0.2.1", 50000)
OUR_QPN, PEER_QPN, SQ_PSN, RQ_PSN = 0x11, 0x77, 0xFFFFFE, 0x500


def device() -> Device:
    """A device with one queue pair to 192.0.2.2."""
    nic = Device("192.0.2.1", rng=random.Random(1))
    cq = nic.create_cq()
    qp = nic.create_qp(nic.alloc_pd(), QPInitAttr(cq, cq), OUR_QPN)
    attr = QPAttr(av=AddressVector("192.0.2.2"), sq_psn=SQ_PSN, rq_psn=RQ_PSN, dest_qp_num=PEER_QPN)
    M = QPAttrMask  # noqa: N806 - as everywhere
    for state, mask in (
        (QPState.IBV_QPS_INIT, M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS),
        (
            QPState.IBV_QPS_RTR,
            M.IBV_QP_AV
            | M.IBV_QP_PATH_MTU
            | M.IBV_QP_DEST_QPN
            | M.IBV_QP_RQ_PSN
            | M.IBV_QP_MAX_DEST_RD_ATOMIC
            | M.IBV_QP_MIN_RNR_TIMER,
        ),
        (
            QPState.IBV_QPS_RTS,
            M.IBV_QP_SQ_PSN
            | M.IBV_QP_TIMEOUT
            | M.IBV_QP_RETRY_CNT
            | M.IBV_QP_RNR_RETRY
            | M.IBV_QP_MAX_QP_RD_ATOMIC,
        ),
    ):
        attr.qp_state = state
        qp.modify(attr, mask | M.IBV_QP_STATE)
    return nic


def line(*rules: str, direction: Direction = Direction.TX, seed: int | None = 1) -> FaultLine:
    return FaultLine(map(FaultRule.parse, rules), direction, device(), seed)


def write(psn: int, dest_qp: int = PEER_QPN, flow: Flow = OUT) -> bytes:
    packet = Packet(BTH(Op.RDMA_WRITE_ONLY, dest_qp, psn), b"data", reth=RETH(0, 1, 4))
    return seal(build(packet), flow)


def acknowledge(psn: int, syndrome: int = 0x1F, dest_qp: int = PEER_QPN) -> bytes:
    return seal(build(Packet(BTH(Op.ACKNOWLEDGE, dest_qp, psn), aeth=AETH(syndrome, 0))), OUT)


def fates(rule: str, packets: list[bytes], **options: int) -> str:
    """One letter a packet: . passes, x is dropped."""
    under = line(rule, **options)  # type: ignore[arg-type]
    results = [under.put(packet, OUT, 0.0) for packet in packets]
    assert all(len(result) == 1 for result in results)
    return "".join("x" if result[0].lost else "." for result in results)


WRITES = [write(SQ_PSN + i & 0xFFFFFF) for i in range(8)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("drop tx", "xxxxxxxx"),
        ("drop rx", "........"),
        ("drop tx once", "x......."),
        ("drop tx nth=3", "..x....."),
        ("drop tx nth=3..5", "..xxx..."),
        ("drop tx every=3", "..x..x.."),
        ("drop tx every=3 once", "..x....."),
        ("drop tx psn=+5", ".....x.."),
        ("drop tx psn=+0..+1", "xx......"),
        ("drop tx psn=+1..+2 nth=2", "..x....."),
        ("drop tx psn=0xffffff", ".x......"),
        ("drop tx psn=0xffffff..0", ".xx....."),
        ("drop tx qp=0x77", "xxxxxxxx"),
        ("drop tx qp=0x11 nth=1", "x......."),
        ("drop tx qp=0x12", "........"),
        ("drop tx opcode=WRITE once", "x......."),
        ("drop tx opcode=rdma_write_only once", "x......."),
        ("drop tx opcode=0x0a once", "x......."),
        ("drop tx opcode=request once", "x......."),
        ("drop tx opcode=RDMA_WRITE_FIRST", "........"),
        ("drop tx opcode=response", "........"),
        ("drop tx p=0", "........"),
        ("drop tx p=1", "xxxxxxxx"),
    ],
)
def test_what_a_selector_selects(rule: str, expected: str) -> None:
    assert fates(rule, WRITES) == expected


ANSWERS = [
    acknowledge(RQ_PSN),
    acknowledge(RQ_PSN + 1, nak_syndrome(NakCode.REMOTE_ACCESS_ERROR)),
    acknowledge(RQ_PSN + 2, rnr_syndrome(12)),
    write(SQ_PSN),
]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("drop tx opcode=ACKNOWLEDGE", "xxx."),
        ("drop tx opcode=ACK", "x..."),
        ("drop tx opcode=NAK", ".x.."),
        ("drop tx opcode=RNR_NAK", "..x."),
        ("drop tx opcode=response nth=2", ".x.."),
        ("drop tx psn=+2 opcode=response", "..x."),  # counted from the first PSN of the requests
        ("drop tx psn=+0", "x..x"),
    ],
)
def test_answers_are_selected_by_what_they_say_and_by_the_psn_of_the_request(
    rule: str, expected: str
) -> None:
    assert fates(rule, ANSWERS) == expected


def test_most_limits_how_often_one_psn_is_hit() -> None:
    assert fates("drop tx most=2", [write(5), write(5), write(6), write(5), write(6)]) == "xxx.x"


def test_what_comes_in_is_counted_from_the_first_psn_expected() -> None:
    under = line("drop rx psn=+1", direction=Direction.RX)
    for psn, lost in ((RQ_PSN, False), (RQ_PSN + 1, True), (RQ_PSN + 2, False)):
        (passing,) = under.put(write(psn, OUR_QPN, BACK), BACK, 0.0)
        assert passing.lost is lost


def test_the_same_seed_gives_the_same_chances_and_another_does_not() -> None:
    packets = [write(i) for i in range(200)]
    first = fates("drop tx p=0.3", packets, seed=7)
    assert first == fates("drop tx p=0.3", packets, seed=7)
    assert first != fates("drop tx p=0.3", packets, seed=8)
    assert 30 < first.count("x") < 90


def test_rules_draw_their_chances_on_their_own() -> None:
    packets = [write(i) for i in range(100)]
    alone = fates("drop tx p=0.3", packets)
    under = line("drop tx p=0.3", "dup tx p=0.5", "drop rx p=0.5")
    both = [under.put(packet, OUT, 0.0)[0].lost for packet in packets]
    assert "".join("x" if lost else "." for lost in both) == alone


def put_all(under: FaultLine, count: int) -> list[int]:
    """PSNs in the order in which they come out at time 0."""
    out: list[Passing] = []
    for psn in range(count):
        out += under.put(write(psn), OUT, 0.0)
    return [psn_of(passing) for passing in out]


def psn_of(passing: Passing) -> int:
    return BTH.unpack(passing.datagram).psn


def test_dup_sends_copies() -> None:
    assert put_all(line("dup tx nth=2"), 3) == [0, 1, 1, 2]
    under = line("dup tx 2 nth=1")
    first, *copies = under.put(write(0), OUT, 0.0)
    assert first.comment is None
    assert [copy.comment for copy in copies] == ["fault: copied by 'dup tx 2 nth=1'"] * 2


def test_reorder_lets_others_by() -> None:
    assert put_all(line("reorder tx nth=1"), 4) == [1, 0, 2, 3]
    assert put_all(line("reorder tx 2 nth=1"), 4) == [1, 2, 0, 3]
    assert put_all(line("reorder tx 2 nth=1..2"), 5) == [2, 0, 3, 1, 4]


def test_what_is_held_back_and_not_overtaken_goes_on_alone() -> None:
    under = line("reorder tx 2 once")
    assert under.put(write(0), OUT, 5.0) == []
    assert under.next_timer() == 5.0 + LONGEST_HOLD
    assert under.due(5.0 + LONGEST_HOLD / 2) == []
    assert [psn_of(p) for p in under.due(5.0 + LONGEST_HOLD)] == [0]
    assert under.next_timer() is None


def test_delay_waits_and_keeps_order() -> None:
    under = line("delay tx 5ms psn=0..1", "dup tx psn=0")
    assert under.put(write(0), OUT, 1.0) == []
    assert under.put(write(1), OUT, 1.0) == []
    assert [psn_of(p) for p in under.put(write(2), OUT, 1.0)] == [2]
    assert under.due(1.0049) == []
    late = under.due(1.005)
    assert [psn_of(p) for p in late] == [0, 0, 1]
    assert late[0].comment == "fault: delayed by 'delay tx 5ms psn=0..1'"


def test_a_corrupted_byte_makes_the_icrc_wrong() -> None:
    before = write(0)
    (passing,) = line("corrupt tx byte=20").put(before, OUT, 0.0)
    after = passing.datagram
    assert [i for i in range(len(before)) if before[i] != after[i]] == [20]
    assert verify(after, OUT)[0] is IcrcMatch.BAD
    (untouched,) = line("corrupt tx byte=20").put(acknowledge(0), OUT, 0.0)  # 20 bytes long
    assert untouched.datagram == acknowledge(0)


def test_without_byte_the_seed_chooses_one() -> None:
    def place(seed: int) -> int:
        (passing,) = line("corrupt tx", seed=seed).put(write(0), OUT, 0.0)
        (changed,) = (i for i, b in enumerate(write(0)) if passing.datagram[i] != b)
        return changed

    assert place(1) == place(1)
    assert len({place(seed) for seed in range(20)}) > 5


@pytest.mark.parametrize("psn", range(20))
def test_a_bad_icrc_is_bad_for_every_ip_id(psn: int) -> None:
    (passing,) = line("bad-icrc tx").put(write(psn), OUT, 0.0)
    assert passing.datagram[:-4] == write(psn)[:-4]
    assert verify(passing.datagram, OUT)[0] is IcrcMatch.BAD


def test_ce_marks_and_changes_nothing() -> None:
    (passing,) = line("ce tx").put(write(0), OUT, 0.0)
    assert passing.ce
    assert passing.datagram == write(0)


def test_what_was_done_is_counted_and_told() -> None:
    nic = device()
    rules = [FaultRule.parse(text) for text in ("ce tx", "drop  tx   psn=+1 once")]
    under = FaultLine(rules, Direction.TX, nic, 1)
    told = [under.put(packet, OUT, 0.0)[0].comment for packet in WRITES[:3]]
    assert told == [
        "fault: marked CE by 'ce tx'",
        "fault: marked CE by 'ce tx'; dropped by 'drop tx psn=+1 once'",
        "fault: marked CE by 'ce tx'",
    ]
    assert nic.counters["fault_ce"] == 3
    assert nic.counters["fault_drop"] == 1


def test_a_datagram_too_short_for_a_bth_is_only_selected_blindly() -> None:
    assert fates("drop tx opcode=0", [b"\0" * 8]) == "."
    assert fates("drop tx psn=0", [b"\0" * 8]) == "."
    assert fates("drop tx", [b"\0" * 8]) == "x"


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("", "the form is ACTION DIRECTION SELECTOR"),
        ("drop", "the form is ACTION DIRECTION SELECTOR"),
        ("lose tx", "no action 'lose'; there are drop, dup, delay, reorder, corrupt, bad-icrc, ce"),
        ("drop out", "direction 'out': allowed are tx and rx"),
        ("drop tx twice", "'twice' is no selector; there are qp=, psn="),
        ("drop tx 5ms", "'5ms' is no selector"),
        ("drop tx byte=5", "only corrupt takes byte=N"),
        ("drop tx psn=x", "'x' is no number"),
        ("drop tx psn=0x1000000", "allowed are 0 to 16777215"),
        ("drop tx psn=+5..7", "both ends with +, or none"),
        ("drop tx psn=+5..+4", "the end is before the beginning"),
        ("drop tx nth=0", "allowed are 1 to"),
        ("drop tx nth=5..4", "the end is before the beginning"),
        ("drop tx p=1.5", "allowed are 0 to 1"),
        ("drop tx p=often", "allowed are 0 to 1"),
        ("drop tx once once", "this was said already"),
        ("drop tx nth=1 nth=2", "this was said already"),
        ("drop tx opcode=WRIET", "no opcode 'WRIET'"),
        ("delay tx", "how long? as in delay tx 5ms"),
        ("delay tx soon", "'soon' is no time"),
        ("delay tx 5", "'5' is no time"),
        ("dup tx 0", "allowed are 1 to 1000"),
    ],
)
def test_a_mistake_is_one_sentence_that_quotes_the_rule(rule: str, says: str) -> None:
    with pytest.raises(FaultError) as caught:
        FaultRule.parse(rule)
    assert str(caught.value).startswith(f"fault {rule!r}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(("text", "seconds"), [("5ms", 0.005), ("1.5s", 1.5), ("20us", 2e-5)])
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == pytest.approx(seconds)
