"""Requests of an exchange in their order: opcode sequence, lengths, PSNs that they take."""

from rocemu.audit.exchange import BEFORE, MTUS, Exchange, Gap, Pending
from rocemu.audit.resends import unusual
from rocemu.audit.tables import ASKING, SEQUENCE
from rocemu.wire import PSN_MASK, Op, opcode_name

__all__ = ["on_request", "on_unreliable"]

_HALF = 0x800000
_MOST_SENT = 8192  # requests remembered without an answer
_READ = Op.RDMA_READ_REQUEST
_UNDER_WAY = ("no message", "a SEND", "an RDMA WRITE")


def on_request(
    x: Exchange,
    op: int,
    psn: int,
    payload: int,
    ackreq: bool,
    length: int,
    va: int,
    number: int,
    time: int,
    icrc: int,
) -> None:
    """A request of a reliable connection; ``length`` is its RETH's."""
    expected = x.next
    if expected is None:
        expected = x.begin(psn + BEFORE)
    psn = expected + (((psn - expected + _HALF) & PSN_MASK) - _HALF)
    if (psn != expected or x.watch) and not unusual(
        x, op, psn, payload, length, va, number, time, icrc
    ):
        return
    _track(x, op, payload, length, number)
    last = _ask(x, op, psn, length, va, number) if op in ASKING else psn
    x.next = last + 1
    x.last_number = number
    x.sent.append((psn, last, number, time, op, x.messages, icrc, ackreq, x.open, x.left, payload))
    if len(x.sent) > _MOST_SENT:
        x.sent.popleft()


def on_unreliable(x: Exchange, op: int, psn: int, payload: int, length: int, number: int) -> None:
    """A request of UC: nothing is answered and nothing sent again, a gap is a lost message."""
    expected = x.next
    if expected is None:
        expected = x.begin(psn + BEFORE)
    psn = expected + (((psn - expected + _HALF) & PSN_MASK) - _HALF)
    if psn < expected:
        x.report("reordered", (x.last_number, number), f"PSN {psn & PSN_MASK:#08x} comes late")
        return
    if psn > expected:
        gap = Gap(expected, psn - 1, x.last_number, number)
        x.report("psn-gap", gap.packets, f"{gap}; UC sends nothing again")
        x.open, x.left = -1, None
    _track(x, op, payload, length, number)
    x.next = psn + 1
    x.last_number = number


def _track(x: Exchange, op: int, payload: int, length: int, number: int) -> None:
    """Where in its message the next packet stands, and what of the message is still to come."""
    kind, starts, ends = SEQUENCE[op]
    under_way = x.open
    if under_way >= 0 and (under_way > 0 if starts else under_way != kind):
        x.report(
            "opcode-sequence",
            (x.last_number, number) if x.last_number else (number,),
            f"{opcode_name(op)} while {_UNDER_WAY[under_way]} is under way",
        )
        x.left = None
    if ends:
        x.open = 0
        x.messages += 1
        if kind == 2 and not starts and x.left is not None and x.left != payload:
            x.report(
                "write-length",
                (number,),
                f"the WRITE ends with {payload} bytes, {x.left} of its RETH's length were left",
            )
        if kind and x.pmtu is not None and payload > x.pmtu:
            x.report("pmtu", (number,), f"{payload} bytes, the path MTU is {x.pmtu}")
    else:
        x.open = kind
        if payload != x.pmtu:
            _fill(x, payload, number)
        if kind == 2:
            if starts:
                x.left = length - payload
            elif x.left is not None:
                x.left -= payload
    if starts and x.credit_limit is not None and x.messages > x.credit_limit + 1:
        x.report(
            "credits-exceeded",
            (number,),
            f"message {x.messages} of those seen, the last credits reach to {x.credit_limit}",
        )


def _fill(x: Exchange, payload: int, number: int) -> None:
    """A First or Middle, whose payload is the PMTU."""
    if x.pmtu is not None:
        x.report("pmtu", (number,), f"{payload} bytes in a First or Middle, the PMTU is {x.pmtu}")
    elif payload in MTUS:
        x.pmtu = payload


def _ask(x: Exchange, op: int, psn: int, length: int, va: int, number: int) -> int:
    """A READ, atomic, FLUSH or ATOMIC WRITE; gives the PSN of its last response."""
    count = 1
    reads = op & 0x1F == _READ
    if reads and length > 1:
        count = -(-length // (x.pmtu or MTUS[0]))
    pending = Pending(psn, psn + count - 1, number, op, length, va, x.messages, psn, psn)
    x.reads.append(pending)
    if reads and x.pmtu is None and length > MTUS[-1]:
        x.loose, x.watch = pending, True
    if x.depth is not None and len(x.reads) > x.depth:
        x.report(
            "read-depth",
            (x.reads[0].number, number),
            f"{len(x.reads)} READs and atomics are outstanding, the responder serves {x.depth}",
        )
    if len(x.reads) > _MOST_SENT:
        x.reads.popleft()
    return pending.last
