"""Cases of the codes that are about requests."""

from __future__ import annotations

from rocemu.wire import Op
from tests.audit.cases import case, connect, disconnect, ud
from tests.audit.talk import MS, PMTU, US, VA, Talk

UC_SEND_ONLY = 0x24


@case("psn-gap", also="nak-psn-sequence retransmission")
def psn_gap(t: Talk, wrong: bool) -> None:
    t.write()
    if wrong:
        t.ask(Op.SEND_ONLY, psn=t.q + 1)
        t.nak(0x60, t.q)
    t.ask(Op.SEND_ONLY)
    t.ask(Op.SEND_ONLY)
    t.ack(count=2)


@case("capture-gap")
def capture_gap(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY)
    if wrong:
        t.frames.pop()
    t.ask(Op.SEND_ONLY)
    t.ack(count=2)
    t.write()


@case("psn-far")
def psn_far(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY, psn=t.q + 0x400000) if wrong else t.write()
    t.write()


@case("reordered")
def reordered(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY)
    t.ask(Op.SEND_ONLY)
    t.ack(count=2)
    if wrong:
        first, second = t.frames[2].data, t.frames[3].data
        t.frames[2].data, t.frames[3].data = second, first


@case("duplicate")
def duplicate(t: Talk, wrong: bool) -> None:
    t.write()
    number = t.ask(Op.SEND_ONLY)
    if wrong:
        t.again(number)
    t.ack()


@case("retransmission")
def retransmission(t: Talk, wrong: bool) -> None:
    t.write()
    psn = t.q
    t.ask(Op.SEND_FIRST, b"x" * PMTU)
    t.ask(Op.SEND_LAST, b"x")
    t.wait(70 * MS)
    if wrong:
        t.ask(Op.SEND_FIRST, b"x" * PMTU, psn=psn)
        t.ask(Op.SEND_LAST, b"x", psn=psn + 1)
    t.ack()
    t.write()


@case("retransmission-differs", also="retransmission", without="retransmission")
def retransmission_differs(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY, b"12345678")
    t.wait(70 * MS)
    t.ask(Op.SEND_ONLY, b"1234" if wrong else b"12345678", psn=t.q - 1)
    t.ack()


@case("read-psn", also="one-sided")
def read_psn(t: Talk, wrong: bool) -> None:
    connect(t)
    psn = t.q
    t.read(3 * PMTU, skip=(0, 1, 2) if wrong else ())
    if wrong:
        t.q = psn + 1  # as if a READ took one PSN
    t.ask(Op.SEND_ONLY)
    t.wait(200 * MS)
    if not wrong:
        t.ack()
    ud(t)


@case("opcode-sequence", also="nak-invalid-request")
def opcode_sequence(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_FIRST, b"x" * PMTU)
    if wrong:
        t.ask(Op.SEND_ONLY)
        t.nak(0x61, t.q - 1)
    else:
        t.ask(Op.SEND_LAST, b"x")
        t.ack()


@case("transport-mixed")
def transport_mixed(t: Talk, wrong: bool) -> None:
    t.write()
    if wrong:
        t.ask(UC_SEND_ONLY, psn=t.q)
    t.write()


@case("pmtu")
def pmtu(t: Talk, wrong: bool) -> None:
    t.write(2 * PMTU)
    t.ask(Op.SEND_ONLY, b"x" * (PMTU + (1 if wrong else 0)))
    t.ack()
    t.ask(Op.SEND_FIRST, b"x" * (2048 if wrong else PMTU))
    t.ask(Op.SEND_LAST, b"x")
    t.ack()


@case("read-depth")
def read_depth(t: Talk, wrong: bool) -> None:
    connect(t, depth=1 if wrong else 2)
    t.ask(Op.RDMA_READ_REQUEST, length=8)
    t.ask(Op.FETCH_ADD)
    t.msn = 1
    t.respond(t.q - 2, 8)
    t.msn = 2
    t.answer(Op.ATOMIC_ACKNOWLEDGE, t.q - 1)


@case("credits-exceeded")
def credits_exceeded(t: Talk, wrong: bool) -> None:
    connect(t, flow_control=True)
    t.ask(Op.SEND_ONLY)
    t.ack(syndrome=2 if wrong else 4)  # so many more
    for _ in range(4):
        t.ask(Op.SEND_ONLY)
    t.ack(count=4, syndrome=4)


@case("rnr-early", also="rnr-nak retransmission", without="rnr-nak retransmission")
def rnr_early(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY)
    t.nak(0x20 | 14, t.q - 1)  # 1.28 ms
    t.wait(1270 * US if not wrong else 1260 * US)
    t.ask(Op.SEND_ONLY, psn=t.q - 1)
    t.ack()


@case("request-in-error", also="nak-remote-access", without="nak-remote-access")
def request_in_error(t: Talk, wrong: bool) -> None:
    connect(t, psn_back=77)
    t.ask(Op.RDMA_WRITE_ONLY, b"12345678")
    if not wrong:
        back(t, 77)
    t.nak(0x62, t.q - 1)
    if wrong:
        back(t, 77)


def back(t: Talk, psn: int) -> None:
    """A request of B to A, on the same pair of queue pairs, and A's ACK."""
    t.there, t.back, t.qpn_a, t.qpn_b = t.back, t.there, t.qpn_b, t.qpn_a
    t.ask(Op.SEND_ONLY, b"b", psn=psn)
    t.answer(Op.ACKNOWLEDGE, psn, msn=1)
    t.there, t.back, t.qpn_a, t.qpn_b = t.back, t.there, t.qpn_b, t.qpn_a


@case("one-sided")
def one_sided(t: Talk, wrong: bool) -> None:
    t.ask(Op.SEND_ONLY)
    t.ask(Op.SEND_ONLY)
    if not wrong:
        t.ack(count=2)


@case("unfinished")
def unfinished(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY)
    if not wrong:
        t.ack()


@case("ack-missing")
def ack_missing(t: Talk, wrong: bool) -> None:
    connect(t)
    t.write()
    t.ask(Op.SEND_ONLY, va=VA)
    if not wrong:
        t.ack()
    disconnect(t)
