"""For every code a conversation that draws it, and nearly the same one without the fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rocemu.capture import build_frame
from rocemu.wire import (
    BTH,
    DETH,
    CmDrep,
    CmDreq,
    CmRej,
    CmRep,
    CmReq,
    CmRtu,
    CNPPad,
    Op,
    Packet,
    build,
)
from tests.audit.talk import MS, PMTU, US, VA, Talk

__all__ = ["CASES", "Case", "connect"]

Make = Callable[[Talk, bool], None]


@dataclass(frozen=True)
class Case:
    """``make(talk, True)`` draws ``code``, with what else belongs to the story."""

    code: str
    make: Make
    also: frozenset[str]
    """Other codes that the faulty conversation draws."""
    without: frozenset[str]
    """Codes that the conversation without the fault draws."""


CASES: dict[str, Case] = {}


def case(code: str, *, also: str = "", without: str = "") -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        assert code not in CASES
        CASES[code] = Case(code, make, frozenset(also.split()), frozenset(without.split()))
        return make

    return register


def connect(
    t: Talk,
    *,
    depth: int = 4,
    flow_control: bool = False,
    mtu: int = 3,
    psn_back: int = 77,
    comm: int = 5,
) -> None:
    """CM exchange: A expects ``psn_back`` first, B the ``q`` of the talk."""
    req = CmReq(
        local_comm_id=comm,
        local_qpn=t.qpn_a,
        starting_psn=psn_back,
        path_mtu=mtu,
        responder_resources=depth,
        initiator_depth=depth,
        end_to_end_flow_control=flow_control,
    )
    rep = CmRep(
        local_comm_id=6,
        remote_comm_id=comm,
        local_qpn=t.qpn_b,
        starting_psn=t.q,
        responder_resources=depth,
        initiator_depth=depth,
        end_to_end_flow_control=flow_control,
    )
    t.mad(req, t.there)
    t.mad(rep, t.back)
    t.mad(CmRtu(local_comm_id=comm, remote_comm_id=6), t.there)


def disconnect(t: Talk) -> None:
    t.mad(CmDreq(local_comm_id=5, remote_comm_id=6, remote_qpn=t.qpn_b), t.there)
    t.mad(CmDrep(local_comm_id=6, remote_comm_id=5), t.back)


def ud(t: Talk, payload: bytes = b"datagram", *, data: bytes | None = None, qpn: int = 0x99) -> int:
    packet = Packet(BTH(0x64, qpn, 1), payload, deth=DETH(0x11111111, 0x88))
    return t.send(t.there, build(packet) if data is None else data)


# the packet by itself


@case("icrc-bad", also="one-sided", without="one-sided")
def icrc_bad(t: Talk, wrong: bool) -> None:
    t.ask(Op.SEND_ONLY, b"0123456789abcdef")
    data = build(Packet(BTH(Op.SEND_ONLY, t.qpn_b, t.q), b"0123456789abcdef"))
    t.send(t.there, data, **({"icrc": b"\xde\xad\xbe\xef"} if wrong else {}))


@case("icrc-unchecked")
def icrc_unchecked(t: Talk, wrong: bool) -> None:
    t.write(64)
    if wrong:
        frame = t.frames[0]
        t.frames[0] = replace(frame, data=frame.data[:-8])


@case("header-damaged")
def header_damaged(t: Talk, wrong: bool) -> None:
    ud(t)
    frame = bytearray(t.frames[0].data)
    frame[14 + 9] ^= 1 if wrong else 0  # the IP protocol
    t.frames[0] = replace(t.frames[0], data=bytes(frame))


@case("datagram-short")
def datagram_short(t: Talk, wrong: bool) -> None:
    t.put(build_frame(t.there, 1, bytes(15))) if wrong else ud(t)


@case("datagram-length", also="icrc-bad")
def datagram_length(t: Talk, wrong: bool) -> None:
    ud(t)
    frame = bytearray(t.frames[0].data)
    frame[14 + 3] += 4 if wrong else 0  # the IP total length
    t.frames[0] = replace(t.frames[0], data=bytes(frame) + bytes(4))


@case("fragmented")
def fragmented(t: Talk, wrong: bool) -> None:
    ud(t)
    frame = bytearray(t.frames[0].data)
    if wrong:
        frame[14 + 6] = 0x20  # more fragments
    t.frames[0] = replace(t.frames[0], data=bytes(frame))


@case("tver")
def tver(t: Talk, wrong: bool) -> None:
    t.write()
    data = build(Packet(BTH(Op.SEND_ONLY, 0x77, 5, tver=1), b"abcd"))
    t.send(t.there, data) if wrong else None


@case("opcode-reserved")
def opcode_reserved(t: Talk, wrong: bool) -> None:
    t.send(t.there, bytes((0x80 if wrong else 0x64, *build_ud()[1:])))


def build_ud() -> bytes:
    return build(Packet(BTH(0x64, 0x99, 1), b"datagram", deth=DETH(0x11111111, 0x88)))


@case("pad")
def pad(t: Talk, wrong: bool) -> None:
    ud(t, data=build_ud() + (b"abc" if wrong else b"abcd"))


@case("pad-not-zero")
def pad_not_zero(t: Talk, wrong: bool) -> None:
    data = bytearray(build(Packet(BTH(0x64, 0x99, 1), b"12345", deth=DETH(0x11111111, 0x88))))
    data[-1] = 1 if wrong else 0
    ud(t, data=bytes(data))


@case("pkey")
def pkey(t: Talk, wrong: bool) -> None:
    t.ask(Op.RDMA_WRITE_ONLY, pkey=0x8000 if wrong else 0x7FFF)
    t.ack()


@case("reserved-bits")
def reserved_bits(t: Talk, wrong: bool) -> None:
    # FECN and BECN are bits of the same byte, and not reserved
    t.ask(Op.SEND_ONLY, resv7=1 if wrong else 0, fecn=True, becn=True)
    t.ack()
    t.ask(Op.SEND_ONLY, resv6=1 if wrong else 0)
    t.ack()


@case("qpn-reserved")
def qpn_reserved(t: Talk, wrong: bool) -> None:
    data = bytearray(build_ud())
    data[5:8] = bytes(3) if wrong else b"\0\0\2"
    ud(t, data=bytes(data))


@case("payload-length", also="pmtu")
def payload_length(t: Talk, wrong: bool) -> None:
    t.write(2 * PMTU)
    t.ask(Op.SEND_FIRST, b"x" * (100 if wrong else PMTU))
    t.ask(Op.SEND_LAST, b"x")
    t.ack()


@case("write-length")
def write_length(t: Talk, wrong: bool) -> None:
    t.ask(Op.RDMA_WRITE_ONLY, b"12345678", length=9 if wrong else 8)
    t.ack()
    t.ask(Op.RDMA_WRITE_FIRST, b"x" * PMTU, length=2 * PMTU)
    t.ask(Op.RDMA_WRITE_LAST, b"x" * (PMTU - 1 if wrong else PMTU))
    t.ack()


@case("dma-length", also="nak-invalid-request", without="nak-invalid-request")
def dma_length(t: Talk, wrong: bool) -> None:
    psn = t.q
    t.ask(Op.RDMA_WRITE_FIRST, b"x" * PMTU, length=(1 << 31) + (1 if wrong else 0))
    t.nak(0x61, psn)


@case("atomic-alignment")
def atomic_alignment(t: Talk, wrong: bool) -> None:
    t.ask(Op.FETCH_ADD, va=VA + (4 if wrong else 8))
    t.msn += 1
    t.answer(Op.ATOMIC_ACKNOWLEDGE, t.q - 1)


@case("aeth-reserved", without="nak-remote-operational")
def aeth_reserved(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY)
    t.nak(0x64 if wrong else 0x63, t.q - 1)
    if wrong:
        t.ack()


@case("answer-syndrome")
def answer_syndrome(t: Talk, wrong: bool) -> None:
    t.ask(Op.RDMA_READ_REQUEST, length=4)
    t.answer(Op.RDMA_READ_RESPONSE_ONLY, t.q - 1, b"data", syndrome=0x62 if wrong else 0, msn=1)


@case("gsi-qkey", also="cm-rejected", without="cm-rejected")
def gsi_qkey(t: Talk, wrong: bool) -> None:
    rej = CmRej(local_comm_id=1, remote_comm_id=2, reason=8)
    t.mad(rej, t.there, **({"qkey": 0x11111111} if wrong else {}))


@case("cm-malformed")
def cm_malformed(t: Talk, wrong: bool) -> None:
    mad = bytearray(256)
    mad[:4] = bytes((1, 7 if wrong else 4, 2, 3))  # class 4 is not the connection manager's
    data = Packet(BTH(0x64, 1, 0), bytes(mad), deth=DETH(0x80010000, 1))
    t.send(t.there, data)


@case("cm-rejected")
def cm_rejected(t: Talk, wrong: bool) -> None:
    t.mad(CmReq(local_comm_id=1, local_qpn=9, path_mtu=3), t.there)
    if wrong:
        t.mad(CmRej(local_comm_id=2, remote_comm_id=1, reason=8), t.back)


def cnp(t: Talk, **bth: object) -> int:
    header = replace(BTH(0x81, t.qpn_a, 0, becn=True), **bth)  # type: ignore[arg-type]
    return t.send(t.back, Packet(header, cnppad=CNPPad(bytes(16))))


@case("cnp-format")
def cnp_format(t: Talk, wrong: bool) -> None:
    cnp(t, becn=not wrong)
    t.wait(MS)
    cnp(t, psn=1 if wrong else 0)


@case("cnp-rate")
def cnp_rate(t: Talk, wrong: bool) -> None:
    for _ in range(3):
        cnp(t)
        t.wait(0 if wrong else 50 * US)
