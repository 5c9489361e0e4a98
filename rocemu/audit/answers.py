"""Answers of an exchange: acknowledges, READ responses, atomic acknowledges."""

from collections.abc import Iterator

from rocemu.audit.acknowledged import check_credits, check_msn, take
from rocemu.audit.exchange import Exchange, Nak, NakKind, Pending
from rocemu.audit.naks import on_nak
from rocemu.audit.read_psns import tighten
from rocemu.audit.resends import go_on_to
from rocemu.audit.tables import ASKING
from rocemu.wire import NO_CREDIT_LIMIT, PSN_MASK, Op, opcode_name

__all__ = ["on_answer"]

_HALF = 0x800000
_ACKNOWLEDGE, _ATOMIC_ACK = Op.ACKNOWLEDGE, Op.ATOMIC_ACKNOWLEDGE
_MIDDLE = Op.RDMA_READ_RESPONSE_MIDDLE
_ATOMICS = frozenset({Op.COMPARE_SWAP, Op.FETCH_ADD})


def on_answer(
    x: Exchange, op: int, psn: int, payload: int, aeth: int, number: int, time: int
) -> None:
    """An ACK, NAK, READ response or atomic acknowledge; ``aeth`` is 0 for a response Middle."""
    expected = x.next
    if expected is None or x.dead:
        return
    psn = expected + (((psn - expected + _HALF) & PSN_MASK) - _HALF)
    x.answers += 1
    if not x.watch and _as_usual(x, op, psn, payload, aeth, number):
        return
    if x.fatal is not None:
        x.report(
            "answer-after-nak",
            (x.fatal.number, number),
            f"{opcode_name(op)} behind the NAK of packet {x.fatal.number}, with which the queue "
            "pair went into error",
        )
        return
    kind = op & 0x1F
    syndrome = aeth >> 24
    if kind == _ACKNOWLEDGE:
        if syndrome < 0x20:
            _acknowledge(x, psn, number, time)
            _count(x, psn, aeth, number)
        else:
            on_nak(x, psn, syndrome, aeth & PSN_MASK, number, time)
        return
    if x.loose is not None and kind == Op.RDMA_READ_RESPONSE_FIRST:
        tighten(x, payload)
    pending = x.pending(psn)
    if pending is None:
        _unasked(x, op, psn, number)
        return
    if pending is not x.reads[0]:
        _pass_over(x, op, pending.psn, number, time)
    _respond(x, pending, op, psn, payload, number, time)
    if kind != _MIDDLE and syndrome < 0x20:
        check_msn(x, pending.messages, aeth & PSN_MASK, number)
        check_credits(x, syndrome, aeth & PSN_MASK, number)


def _as_usual(x: Exchange, op: int, psn: int, payload: int, aeth: int, number: int) -> bool:
    """The two answers that most are, and nothing to say of them: an ACK of the last request, and
    the next of a READ's middle responses.  True when that is all there is to it."""
    kind = op & 0x1F
    if kind == _MIDDLE:
        if not x.reads or payload != x.pmtu:
            return False
        pending = x.reads[0]
        if psn != pending.expected or not pending.begin < psn < pending.last:
            return False
        pending.expected = psn + 1
        return True
    sent = x.sent
    if (
        kind != _ACKNOWLEDGE
        or aeth >> 24 != NO_CREDIT_LIMIT
        or not x.unlimited
        or x.reads
        or x.gaps
        or x.nak is not None
        or not sent
    ):
        return False
    last = sent[-1]
    if last[1] != psn or x.base is None or (aeth - x.base - last[5]) & PSN_MASK:
        return False
    sent.clear()
    x.behind, x.acked, x.acked_by, x.first_sent = last, psn, number, 0
    return True


# acknowledges


def _acknowledge(x: Exchange, psn: int, number: int, time: int) -> None:
    """Everything up to ``psn`` is answered, but for READs and atomics."""
    if psn >= x.top:
        if x.unsent is None:
            x.unsent, x.watch = (psn, number), True
        return
    if psn < x.acked:
        if psn >= x.start:
            x.report(
                "ack-backwards",
                (x.acked_by, number) if x.acked_by else (number,),
                f"acknowledges PSN {psn & PSN_MASK:#08x} after {x.acked & PSN_MASK:#08x}",
            )
        return
    if x.high and psn >= (x.next or 0):
        go_on_to(x, psn + 1)
    if x.reads and x.reads[0].psn <= psn:
        first = x.reads[0]
        if psn <= first.last:
            x.report(
                "answer-kind",
                (first.number, number),
                f"a plain ACK for {opcode_name(first.opcode)}, which has data to come",
            )
        else:
            _pass_over(x, _ACKNOWLEDGE, psn, number, time)
        psn = first.psn - 1
    take(x, psn, number)


def _count(x: Exchange, psn: int, aeth: int, number: int) -> None:
    """MSN and credits of an ACK for ``psn``."""
    if x.behind is not None and x.behind[1] == psn:
        check_msn(x, x.behind[5], aeth & PSN_MASK, number)
    check_credits(x, aeth >> 24, aeth & PSN_MASK, number)


# READ responses and atomic acknowledges


def _unasked(x: Exchange, op: int, psn: int, number: int) -> None:
    """An answer with data to something that asks for none, or that is over."""
    if psn >= x.top:
        if x.unsent is None:
            x.unsent, x.watch = (psn, number), True
        return
    entry = x.find(psn)
    if entry is not None and entry.opcode not in ASKING:
        x.report(
            "answer-kind",
            (entry.number, number),
            f"{opcode_name(op)} for {opcode_name(entry.opcode)}, which is only acknowledged",
        )


def _pass_over(x: Exchange, op: int, psn: int, number: int, time: int) -> None:
    first = x.reads[0]
    x.report(
        "answer-skipped",
        (first.number, number),
        f"{opcode_name(op)} for PSN {psn & PSN_MASK:#08x}, and {opcode_name(first.opcode)} of "
        f"packet {first.number} waits for PSN {first.expected & PSN_MASK:#08x}",
    )
    if x.nak is None:
        x.nak = Nak(NakKind.IMPLIED, first.expected, number, time)


def _respond(
    x: Exchange, p: Pending, op: int, psn: int, payload: int, number: int, time: int
) -> None:
    """One response to ``p``: its kind, its turn, its length."""
    operation = p.opcode & 0x1F
    if (op & 0x1F == _ATOMIC_ACK) != (operation in _ATOMICS):
        x.report(
            "answer-kind",
            (p.number, number),
            f"{opcode_name(op)} for {opcode_name(p.opcode)}",
        )
    if psn < p.expected:
        return  # once more what was there: the READ was sent again while it was on its way
    if psn > p.expected:
        x.report(
            "read-response-gap",
            (p.number, number),
            f"response {psn - p.psn + 1} of {p.last - p.psn + 1} comes, {p.expected - p.psn + 1} "
            "was expected",
        )
        if x.nak is None:
            x.nak = Nak(NakKind.IMPLIED, p.expected, number, time)
    for code, text in _response_faults(x, p, op, psn, payload):
        x.report(code, (p.number, number), text)
    p.expected = psn + 1
    take(x, p.psn - 1, number)
    if psn == p.last:
        x.reads.remove(p)
        take(x, x.reads[0].psn - 1 if x.reads else psn, number)


def _response_faults(
    x: Exchange, p: Pending, op: int, psn: int, payload: int
) -> Iterator[tuple[str, str]]:
    kind = op & 0x1F
    if kind == _ATOMIC_ACK:
        return
    reads = p.opcode & 0x1F == Op.RDMA_READ_REQUEST
    first, last = psn == p.begin, psn == p.last
    right = {
        (True, True): Op.RDMA_READ_RESPONSE_ONLY,
        (True, False): Op.RDMA_READ_RESPONSE_FIRST,
        (False, False): Op.RDMA_READ_RESPONSE_MIDDLE,
        (False, True): Op.RDMA_READ_RESPONSE_LAST,
    }[first, last]
    if kind != right:
        yield (
            "read-response-sequence",
            f"{opcode_name(op)} where {opcode_name((op & 0xE0) | right)} is due",
        )
    rest = p.length if reads else 0
    if psn > p.psn or not last:
        if x.pmtu is None:
            return
        rest -= (psn - p.psn) * x.pmtu
        rest = rest if last else x.pmtu
    if payload != rest:
        yield (
            "read-response-length",
            f"{opcode_name(op)} with {payload} bytes, {rest} were due",
        )
