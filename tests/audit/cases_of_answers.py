"""Cases of the codes that are about answers."""

from __future__ import annotations

from rocemu.wire import Op
from tests.audit.cases import case, ud
from tests.audit.talk import MS, PMTU, Talk


@case("nak-psn-sequence", also="psn-gap retransmission")
def nak_psn_sequence(t: Talk, wrong: bool) -> None:
    t.write()
    if wrong:
        t.ask(Op.SEND_ONLY, psn=t.q + 2)
        t.nak(0x60, t.q)
    for _ in range(3):
        t.ask(Op.SEND_ONLY)
    t.ack(count=3)
    t.write()


@case("rnr-nak", also="retransmission")
def rnr_nak(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY)
    if wrong:
        t.nak(0x21, t.q - 1)
        t.ask(Op.SEND_ONLY, psn=t.q - 1)
    t.ack()


def refused(t: Talk, syndrome: int, wrong: bool) -> None:
    t.write()
    t.ask(Op.RDMA_WRITE_ONLY, b"12345678")
    if wrong:
        t.nak(syndrome, t.q - 1)
    else:
        t.ack()


@case("nak-invalid-request")
def nak_invalid_request(t: Talk, wrong: bool) -> None:
    refused(t, 0x61, wrong)


@case("nak-remote-access")
def nak_remote_access(t: Talk, wrong: bool) -> None:
    refused(t, 0x62, wrong)


@case("nak-remote-operational")
def nak_remote_operational(t: Talk, wrong: bool) -> None:
    refused(t, 0x63, wrong)


@case("nak-impossible", also="nak-remote-access", without="nak-remote-access")
def nak_impossible(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.RDMA_WRITE_ONLY, b"" if wrong else b"1234")  # length 0: no key is looked at
    t.nak(0x62, t.q - 1)


@case(
    "nak-repeated",
    also="nak-psn-sequence psn-gap retransmission",
    without="nak-psn-sequence psn-gap retransmission",
)
def nak_repeated(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY, psn=t.q + 1)
    t.nak(0x60, t.q)
    if wrong:
        t.nak(0x60, t.q)
    t.ask(Op.SEND_ONLY)
    t.ask(Op.SEND_ONLY)
    t.ack(count=2)


@case("nak-acknowledged", also="nak-remote-access", without="nak-remote-access")
def nak_acknowledged(t: Talk, wrong: bool) -> None:
    t.write()
    t.write()
    t.ask(Op.RDMA_WRITE_ONLY, b"1234")
    t.nak(0x62, t.q - (2 if wrong else 1), msn=1 if wrong else 2)


@case("answer-after-nak", also="nak-remote-access", without="nak-remote-access")
def answer_after_nak(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.RDMA_WRITE_ONLY, b"12345678")
    t.nak(0x62, t.q - 1)
    t.ask(Op.RDMA_WRITE_ONLY, b"12345678")  # was on its way
    if wrong:
        t.ack()


@case("ack-unsent")
def ack_unsent(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.SEND_ONLY)
    t.answer(Op.ACKNOWLEDGE, t.q + 3 if wrong else t.q - 1, msn=2)
    t.ask(Op.SEND_ONLY)
    t.answer(Op.ACKNOWLEDGE, t.q - 1, msn=3)


@case("ack-backwards")
def ack_backwards(t: Talk, wrong: bool) -> None:
    t.write()
    t.write()
    t.answer(Op.ACKNOWLEDGE, t.q - (2 if wrong else 1))  # the newest again is no fault
    t.write()


@case("answer-kind", also="unfinished")
def answer_kind(t: Talk, wrong: bool) -> None:
    t.write()
    t.ask(Op.RDMA_READ_REQUEST, length=4)
    t.msn += 1
    if wrong:
        t.answer(Op.ACKNOWLEDGE, t.q - 1)
    else:
        t.respond(t.q - 1, 4)


@case("answer-skipped", also="retransmission")
def answer_skipped(t: Talk, wrong: bool) -> None:
    t.write()
    psn = t.q
    t.read(8, skip=(0,) if wrong else ())
    t.ask(Op.SEND_ONLY)
    t.ack()
    if wrong:
        t.ask(Op.RDMA_READ_REQUEST, length=8, psn=psn)
        t.answer(Op.RDMA_READ_RESPONSE_ONLY, psn, b"rrrrrrrr", msn=2)
        t.ask(Op.SEND_ONLY, psn=psn + 1)
        t.answer(Op.ACKNOWLEDGE, psn + 1)


@case("read-response-gap", also="retransmission")
def read_response_gap(t: Talk, wrong: bool) -> None:
    psn = t.q
    t.read(3 * PMTU, skip=(1,) if wrong else ())
    if wrong:
        t.ask(Op.RDMA_READ_REQUEST, length=2 * PMTU, psn=psn + 1, va=0x7F0000001000 + PMTU)
        t.respond(psn, 3 * PMTU, start=1)


@case("read-response-sequence")
def read_response_sequence(t: Talk, wrong: bool) -> None:
    psn = t.q
    t.ask(Op.RDMA_READ_REQUEST, length=2 * PMTU)
    t.msn += 1
    t.answer(Op.RDMA_READ_RESPONSE_FIRST, psn, b"r" * PMTU)
    last = Op.RDMA_READ_RESPONSE_ONLY if wrong else Op.RDMA_READ_RESPONSE_LAST
    t.answer(last, psn + 1, b"r" * PMTU)


@case("read-response-length")
def read_response_length(t: Talk, wrong: bool) -> None:
    psn = t.q
    t.ask(Op.RDMA_READ_REQUEST, length=2 * PMTU)
    t.msn += 1
    t.answer(Op.RDMA_READ_RESPONSE_FIRST, psn, b"r" * PMTU)
    t.answer(Op.RDMA_READ_RESPONSE_LAST, psn + 1, b"r" * (PMTU - (4 if wrong else 0)))


@case("read-incomplete")
def read_incomplete(t: Talk, wrong: bool) -> None:
    t.read(3 * PMTU, skip=(2,) if wrong else ())
    t.wait(200 * MS)
    ud(t)


@case("msn")
def msn(t: Talk, wrong: bool) -> None:
    t.write()
    t.write()
    t.ask(Op.SEND_ONLY)
    t.ack(msn=t.msn + (2 if wrong else 1))


@case("credits-mixed")
def credits_mixed(t: Talk, wrong: bool) -> None:
    t.ask(Op.SEND_ONLY)
    t.ack(syndrome=3)
    t.ask(Op.SEND_ONLY)
    t.ack(syndrome=0x1F if wrong else 5)
