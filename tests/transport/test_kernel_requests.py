"""The kernel's requests, played to our responder: it answers as Soft-RoCE did.

Opcode, PSN, syndrome, MSN and data of every answer are held against the captures.  Where ours
differ on purpose, a table says so and why.
"""

import pytest

from rocemu.transport import Datagram
from rocemu.verbs import QPState
from rocemu.wire import BTH, Op, parse
from tests.transport.fabric import ALL
from tests.transport.kernel import (
    ACCESS,
    CASES,
    CLIENT,
    INVALID,
    OPERATIONAL,
    SEQUENCE,
    SERVER,
    Answer,
    Case,
    End,
    Spoken,
    answer,
    end,
    region_of,
    sent,
    spoken,
)

LENGTH = "a SEND that is too long is an invalid request, as adapters say"
ENOUGH = "after an RNR NAK no sequence NAK is sent for what was on the way"
#: Case -> why, and our syndrome in place of the kernel's (None: we say nothing).
DIFFERENCES: dict[str, tuple[str, dict[int, int | None]]] = {
    "send_rnr_retry0": (ENOUGH, {SEQUENCE: None}),
    "write_imm_rnr": (ENOUGH, {SEQUENCE: None}),
    "send_too_long": (LENGTH, {OPERATIONAL: INVALID}),
    "send_too_long_one": (LENGTH, {OPERATIONAL: INVALID}),
}


def answers_of(ours: End, requests: list[Spoken]) -> list[Answer]:
    """What our responder says to the requests, one by one."""
    answers = []
    for said in requests:
        datagram = Datagram(said.payload, said.source, said.destination)
        ours.device.receive([datagram], 0.0)
        answers += [answer(parse(payload)) for payload in sent(ours.device)]
    return answers


def recorded(talk: list[Spoken], server: str) -> list[Answer]:
    return [answer(said.packet) for said in talk if said.source == server and said.packet]


def check_state(ours: End, answers: list[Answer]) -> None:
    """The kernel's pair was in ERR after exactly these NAKs."""
    fatal = any(a.syndrome in (INVALID, ACCESS, OPERATIONAL) for a in answers)
    assert ours.qp.state is (QPState.IBV_QPS_ERR if fatal else QPState.IBV_QPS_RTS)


@pytest.mark.parametrize("name", CASES)
def test_requests_of_the_kernel(name: str) -> None:
    talk = spoken(name)
    warm = talk[0].packet
    assert warm is not None
    assert warm.reth is not None
    va, rkey = region_of(name, talk)
    ours = end(
        SERVER,
        CLIENT,
        qpn=warm.bth.dest_qp,
        dest_qpn=0x77,
        psn=0x800200,
        peer_psn=0x100,
        case=CASES[name],
        va=va,
        rkey=rkey,
    )
    ours.device.reg_mr(ours.qp.pd, 4096, ALL, va=warm.reth.va, rkey=warm.reth.rkey)
    answers = answers_of(ours, [said for said in talk if said.source == CLIENT])
    _, changes = DIFFERENCES.get(name, ("", {}))
    expected = []
    for theirs in recorded(talk, SERVER):
        syndrome = changes.get(theirs.syndrome, theirs.syndrome)
        if syndrome is not None:
            expected.append(theirs._replace(syndrome=syndrome))
    assert answers == expected
    check_state(ours, answers)


#: DestQP of hand-made requests -> what they were, and the length of a receive that was posted.
BY_HAND: dict[int, tuple[str, int | None]] = {
    0x5E: ("WRITE", None),
    0x5F: ("WRITE, MigReq 0", None),
    0x60: ("WRITE, TVer 1", None),
    0x62: ("WRITE without AckReq", None),
    0x63: ("WRITE, another P_Key", None),
    0x64: ("WRITE, bad R_Key", None),
    0x65: ("WRITE of length 0, bad R_Key", None),
    0x66: ("FetchAdd", None),
    0x67: ("FetchAdd, misaligned", None),
    0x68: ("CmpSwap, misaligned", None),
    0x69: ("FetchAdd, misaligned, bad R_Key", None),
    0x6A: ("PSN 3 ahead", None),
    0x6B: ("PSN 3 ahead, then 4", None),
    0x6C: ("PSN 1 ahead, then both in order", None),
    0x6D: ("WRITE, repeated", None),
    0x6E: ("FetchAdd, repeated", None),
    0x6F: ("READ, repeated", None),
    0x70: ("PSN behind", None),
    0x71: ("PSN more than half ahead", None),
    0x72: ("PSN nearly half behind", None),
    0x73: ("WRITE Middle without First", None),
    0x74: ("WRITE First, Only", None),
    0x75: ("WRITE First, short", None),
    0x76: ("WRITE Only over the path MTU", None),
    0x77: ("WRITE Only, RETH longer than the payload", None),
    0x78: ("WRITE Only, RETH shorter than the payload", None),
    0x79: ("WRITE Last, short", None),
    0x7A: ("DMA length over 2^31", None),
    0x7B: ("reserved opcode 0x1f", None),
    0x7C: ("reserved opcode 0x15", None),
    0x7D: ("UC SEND", 64),
    0x7E: ("SEND without a receive", None),
    0x7F: ("SEND", 64),
    0x80: ("SEND without AckReq", 64),
    0x81: ("SEND of 3 bytes and pad", 64),
    0x82: ("SEND of 3 bytes without pad", 64),
    0x84: ("WRITE cut in its RETH", None),
    0x85: ("READ of 3000 bytes", None),
    0x86: ("READ of 3000 bytes, then WRITE", None),
    0x87: ("six READs with four resources", None),
    0x88: ("WRITE with a bad R_Key, then a good one", 64),
    0x89: ("WRITE from another source port", None),
    0x8C: ("WRITE over IPv6", None),
}
BEFORE = "the PSN before the first expected one is no PSN of the kernel's: it says 0xffffff"
RESERVED = "[IBTA] has an Invalid Request for it, the kernel drops it"
UNPADDED = "a datagram that is not a multiple of 4 is malformed; the kernel takes it"
BY_HAND_DIFFERENCES: dict[int, tuple[str, list[Answer]]] = {
    0x70: (BEFORE, [Answer(Op.ACKNOWLEDGE, 0x4FF, 0x1F)]),
    0x71: (BEFORE, [Answer(Op.ACKNOWLEDGE, 0x4FF, 0x1F)]),
    0x72: (BEFORE, [Answer(Op.ACKNOWLEDGE, 0x4FF, 0x1F)]),
    0x7B: (RESERVED, [Answer(Op.ACKNOWLEDGE, 0x500, INVALID)]),
    0x7C: (RESERVED, [Answer(Op.ACKNOWLEDGE, 0x500, INVALID)]),
    0x82: (UNPADDED, []),
}
BAD_KEYS = (0x01234500, 0xDEADBEEF)
HOSTS = ("10.77.0.1", "fd77::1")


def by_hand(qpn: int) -> list[Spoken]:
    """The requests to one queue pair, and what was said before the next one had its turn."""
    own: list[Spoken] = []
    for said in spoken("by-hand/inject"):
        if said.source not in HOSTS:
            own += [said] if own else []
        elif BTH.unpack(said.payload).dest_qp == qpn:
            own.append(said)
        elif own:
            break
    return own


@pytest.mark.parametrize("qpn", BY_HAND, ids=lambda qpn: BY_HAND[qpn][0].replace(" ", "_"))
def test_requests_made_by_hand(qpn: int) -> None:
    talk = by_hand(qpn)
    client, server = talk[0].source, talk[0].destination
    va, rkey = 1 << 40, 0x5500
    for said in talk:
        target = said.packet and (said.packet.reth or said.packet.atomiceth)
        if target and target.rkey not in BAD_KEYS:
            va, rkey = target.va & ~7, target.rkey
    length = BY_HAND[qpn][1]
    ours = end(
        server,
        client,
        qpn=qpn,
        dest_qpn=0x77,
        psn=0x900,
        peer_psn=0x500,
        case=Case("", 0, receives=() if length is None else (length,)),
        va=va,
        rkey=rkey,
    )
    answers = answers_of(ours, [said for said in talk if said.source == client])
    expected = recorded(talk, server)
    if qpn in BY_HAND_DIFFERENCES:
        assert expected != BY_HAND_DIFFERENCES[qpn][1]
        expected = BY_HAND_DIFFERENCES[qpn][1]
    assert answers == expected
    check_state(ours, answers)
