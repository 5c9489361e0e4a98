"""Answers of an exchange: acknowledges, NAKs, READ responses, the MSN and credits they carry."""

from collections.abc import Iterator

from rocemu.audit.causes import impossible, name_causes
from rocemu.audit.exchange import Exchange, Nak, NakKind, Pending, RawSent, Sent
from rocemu.audit.resends import go_on_to, tighten
from rocemu.audit.tables import ASKING
from rocemu.wire import (
    CREDITS,
    NO_CREDIT_LIMIT,
    OPCODES,
    PSN_MASK,
    RNR_TIMERS_MS,
    AethKind,
    NakCode,
    Op,
    Operation,
    describe_syndrome,
    opcode_name,
)

__all__ = ["on_answer"]

_HALF = 0x800000
_ACKNOWLEDGE, _ATOMIC_ACK = Op.ACKNOWLEDGE, Op.ATOMIC_ACKNOWLEDGE
_MIDDLE = Op.RDMA_READ_RESPONSE_MIDDLE
_ATOMICS = frozenset({Op.COMPARE_SWAP, Op.FETCH_ADD})
_NAK_CODES = {
    NakCode.INVALID_REQUEST: "nak-invalid-request",
    NakCode.REMOTE_ACCESS_ERROR: "nak-remote-access",
    NakCode.REMOTE_OPERATIONAL_ERROR: "nak-remote-operational",
}


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
            _nak(x, psn, syndrome, aeth & PSN_MASK, number, time)
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
        _check_msn(x, pending.messages, aeth & PSN_MASK, number)
        _credits(x, syndrome, aeth & PSN_MASK, number)


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
    _take(x, psn, number)


def _take(x: Exchange, psn: int, number: int) -> None:
    """Requests up to ``psn`` are answered: forget them."""
    sent = x.sent
    if not (sent and sent[0][1] <= psn):
        return
    last: RawSent = sent[0]
    while sent and sent[0][1] <= psn:
        last = sent.popleft()
    x.behind, x.acked, x.acked_by = last, max(x.acked, psn), number
    x.first_sent = 0
    if x.nak is not None and psn >= x.nak.psn:
        x.nak = None
    if x.gaps:
        _close_gaps(x, psn, number)


def _close_gaps(x: Exchange, psn: int, number: int) -> None:
    for gap in [gap for gap in x.gaps if gap.last <= psn]:
        x.gaps.remove(gap)
        x.base = None  # how many messages were in it, nobody knows
        x.report("capture-gap", (*gap.packets, number), f"{gap}; answered by packet {number}")


def _count(x: Exchange, psn: int, aeth: int, number: int) -> None:
    """MSN and credits of an ACK for ``psn``."""
    if x.behind is not None and x.behind[1] == psn:
        _check_msn(x, x.behind[5], aeth & PSN_MASK, number)
    _credits(x, aeth >> 24, aeth & PSN_MASK, number)


def _check_msn(x: Exchange, least: int, msn: int, number: int, exact: bool = False) -> None:
    """``least`` messages are complete by the PSN; more may have been when the answer was made."""
    if x.base is None:
        x.base = msn - least
        return
    most = least if exact else max(x.most, x.messages)
    ahead = ((msn - x.base - least + _HALF) & PSN_MASK) - _HALF
    if not 0 <= ahead <= most - least:
        right = f"{(x.base + least) & PSN_MASK}"
        if most > least:
            right += f" to {(x.base + most) & PSN_MASK}"
        x.report("msn", (number,), f"MSN {msn}, by the requests before it {right} would be right")
        x.base = msn - least


def _credits(x: Exchange, syndrome: int, msn: int, number: int) -> None:
    unlimited = syndrome & 31 == NO_CREDIT_LIMIT
    if x.unlimited is None:
        x.unlimited = unlimited
    elif x.unlimited is not unlimited:
        x.report(
            "credits-mixed",
            (number,),
            f"{describe_syndrome(syndrome)}, and {'a limit' if unlimited else 'no limit'} before",
        )
        x.unlimited = unlimited
    if x.flow_control and not unlimited and x.base is not None:
        x.credit_limit = ((msn - x.base) & PSN_MASK) + CREDITS[syndrome & 31]


# NAKs


def _nak(x: Exchange, psn: int, syndrome: int, msn: int, number: int, time: int) -> None:
    kind, code = syndrome >> 5, syndrome & 31
    rnr = kind == AethKind.RNR_NAK
    fatal = kind == AethKind.NAK and code in _NAK_CODES
    sequence = syndrome == AethKind.NAK << 5 | NakCode.PSN_SEQUENCE_ERROR
    if not (rnr or fatal or sequence):
        return  # reserved: the packet's own rules say so
    if psn >= x.top + (1 if sequence else 0):
        x.unsent, x.watch = (psn, number), True
        return
    reread = x.pending(psn) is not None
    if psn <= x.acked and psn >= x.start and not reread:
        x.report(
            "nak-acknowledged",
            (x.acked_by, number) if x.acked_by else (number,),
            f"{describe_syndrome(syndrome)} for PSN {psn & PSN_MASK:#08x}, which was answered",
        )
    entry = x.find(psn)
    _take(x, psn - 1, number)
    if x.behind is not None and x.behind[1] == psn - 1:
        _check_msn(x, x.behind[5], msn, number, exact=entry is not None and entry.psn == psn)
    if sequence:
        _sequence_nak(x, psn, entry, number, time)
    elif rnr:
        _rnr_nak(x, psn, code, entry, number, time)
    else:
        _fatal_nak(x, psn, NakCode(code), entry, number, time)


def _sequence_nak(x: Exchange, psn: int, entry: Sent | None, number: int, time: int) -> None:
    nak = x.nak
    if nak is not None and nak.kind is NakKind.SEQUENCE and nak.psn == psn and not nak.resent:
        x.report(
            "nak-repeated",
            (nak.number, number),
            f"PSN {psn & PSN_MASK:#08x} was asked for by packet {nak.number} and not sent since",
        )
        return
    packets = [number]
    gap = next((gap for gap in x.gaps if gap.first <= psn <= gap.last), None)
    if gap is not None:
        packets += gap.packets
        why = f"packet {gap.number} came without it"
    elif nak is not None and nak.kind is NakKind.RNR and nak.psn == psn:
        packets.append(nak.number)
        why = f"what came behind it met the RNR NAK of packet {nak.number}"
    elif entry is not None:
        packets.append(entry.number)
        why = f"packet {entry.number} has it: it was lost behind here"
    else:
        why = "it was not seen here"
    x.report("nak-psn-sequence", tuple(packets), f"PSN {psn & PSN_MASK:#08x} is wanted: {why}")
    x.nak = Nak(NakKind.SEQUENCE, psn, number, time)


def _rnr_nak(x: Exchange, psn: int, code: int, entry: Sent | None, number: int, time: int) -> None:
    wait = RNR_TIMERS_MS[code]
    what = f"PSN {psn & PSN_MASK:#08x}"
    why = "the responder was not ready"
    if entry is not None:
        info = OPCODES.get(entry.opcode)
        what = f"{opcode_name(entry.opcode)} of packet {entry.number}"
        if info is None or info.operation is Operation.SEND or info.has_immediate:
            why = "no receive was posted"
        else:
            why = "it takes no receive: a page fault, or resources used up"
    x.report(
        "rnr-nak",
        (number,) if entry is None else (entry.number, number),
        f"{what} is to wait {wait:g} ms: {why}",
    )
    x.nak = Nak(NakKind.RNR, psn, number, time, int(wait * 1e6))


def _fatal_nak(
    x: Exchange, psn: int, code: NakCode, entry: Sent | None, number: int, time: int
) -> None:
    packets = (number,) if entry is None else (entry.number, number)
    if entry is None:
        text = f"PSN {psn & PSN_MASK:#08x} is refused, its request is not in the capture"
    else:
        reason = impossible(code, entry, x.pending(psn))
        if reason is not None:
            name = describe_syndrome(AethKind.NAK << 5 | code)
            x.report("nak-impossible", packets, f"{name} for {opcode_name(entry.opcode)}: {reason}")
        fault = x.findings.fault_of(entry.number)
        if fault is None or code is not NakCode.INVALID_REQUEST:
            cause = name_causes(code, entry, x.pending(psn))
        else:
            cause = f"it breaks a rule, {fault}"
        text = (
            f"{opcode_name(entry.opcode)} of packet {entry.number}, PSN {entry.psn & PSN_MASK:#08x}"
            f", is refused: {cause}"
        )
    x.report(_NAK_CODES[code], packets, text)
    x.fatal = Nak(NakKind.FATAL, psn, number, time)
    x.watch = True
    x.kill_reverse(number)


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
    _take(x, p.psn - 1, number)
    if psn == p.last:
        x.reads.remove(p)
        _take(x, x.reads[0].psn - 1 if x.reads else psn, number)


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
