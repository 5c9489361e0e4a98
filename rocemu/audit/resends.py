"""Requests that are not simply the next one: gaps, what is sent again and why, strays.

A requester that goes back to a PSN is followed back: the exchange stands at that PSN again, with
the message count of then, and what was sent before from there on is kept for comparison until the
requester is past it.
"""

from rocemu.audit.endings import close, end_burst
from rocemu.audit.exchange import (
    MOMENT,
    MTUS,
    Burst,
    Exchange,
    NakKind,
    Sent,
)
from rocemu.audit.gaps import fill_gaps, filled, skip
from rocemu.audit.read_psns import try_mtus
from rocemu.wire import PSN_MASK, Op, opcode_name

__all__ = ["go_on_to", "unusual"]

_WINDOW = 1 << 16  # PSNs: no requester has more under way, READs aside
_READ = Op.RDMA_READ_REQUEST


def unusual(
    x: Exchange,
    op: int,
    psn: int,
    payload: int,
    length: int,
    va: int,
    number: int,
    time: int,
    icrc: int,
) -> bool:
    """Everything but the next request in order; whether to take it as that after all."""
    if x.dead:
        x.report("request-in-error", (x.dead, number), f"{opcode_name(op)} after its own fatal NAK")
        return False
    if x.loose is not None:
        try_mtus(x, psn)
    if psn - x.top > _WINDOW or psn < x.acked - _WINDOW:
        return _far(x, op, psn, length, number)
    x.far = -1
    if x.fatal is not None:
        if psn < x.top:
            _again(x, psn, number, time, 0)
        return False  # on its way when the NAK was, or to a queue pair that is in error
    if x.unsent is not None:
        _judge_unsent(x, psn)
    if psn < (x.next or 0):
        return _repeated(x, op, psn, payload, length, va, number, time, icrc)
    if x.high:
        go_on_to(x, psn)
        if psn < x.high:
            _resent(x, op, psn, payload, number)
        else:
            end_burst(x)
    elif x.burst is not None and psn == x.next:
        end_burst(x)
    if psn > (x.next or 0):
        skip(x, psn, number, time)
    return True


# far away


def _far(x: Exchange, op: int, psn: int, length: int, number: int) -> bool:
    """One packet may be a stray; a second one that follows it is a new start on the QP."""
    if psn == x.far:
        close(x)
        x.restart(psn)
        return True
    x.far = psn + (max(1, -(-length // (x.pmtu or MTUS[0]))) if op & 0x1F == _READ else 1)
    x.report(
        "psn-far",
        (number,),
        f"PSN {psn & PSN_MASK:#08x}, expected was {(x.next or 0) & PSN_MASK:#08x}",
    )
    return False


def _judge_unsent(x: Exchange, psn: int) -> None:
    """What was answered before it was sent: lost by the capture, if the requester is past it."""
    if x.unsent is not None and psn <= x.unsent[0]:
        x.report_unsent()
    x.unsent = None
    x.settle()


# again


def _repeated(
    x: Exchange,
    op: int,
    psn: int,
    payload: int,
    length: int,
    va: int,
    number: int,
    time: int,
    icrc: int,
) -> bool:
    """A PSN that is behind; True when it is to be taken as the next request."""
    if filled(x, psn, number, time):
        return False
    entry = x.find(psn)
    if entry is None:
        if psn > x.acked:  # of a gap, or forgotten
            _again(x, psn, number, time, 0)
            _go_back(x, psn)
            return True
        if not _is_copy(x, psn, icrc, number, time, Sent(*x.behind) if x.behind else None):
            _again(x, psn, number, time, 0)
        return False
    if psn > entry.psn:
        return _within_read(x, op, psn, length, va, number, time, entry)
    if _is_copy(x, psn, icrc, number, time, entry):
        return False
    _again(x, psn, number, time, entry.number)
    _go_back(x, psn)
    _resent(x, op, psn, payload, number, count=False)
    return True


def _is_copy(x: Exchange, psn: int, icrc: int, number: int, time: int, entry: Sent | None) -> bool:
    if (
        entry is None
        or entry.psn != psn
        or entry.icrc != icrc
        or time - entry.time >= MOMENT
        or x.nak is not None
    ):
        return False
    x.report(
        "duplicate",
        (entry.number, number),
        f"PSN {psn & PSN_MASK:#08x} again {(time - entry.time) / 1000:g} us later, byte for byte",
    )
    return True


def _within_read(
    x: Exchange,
    op: int,
    psn: int,
    length: int,
    va: int,
    number: int,
    time: int,
    entry: Sent,
) -> bool:
    """A PSN of a READ's responses: the READ resumed, or a requester that counts wrongly."""
    pending = x.pending(psn)
    if op & 0x1F != _READ or pending is None:
        x.report(
            "read-psn",
            (entry.number, number),
            f"PSN {psn & PSN_MASK:#08x} is one of the {entry.last - entry.psn + 1} that the READ "
            f"of packet {entry.number} takes",
        )
        _go_back(x, psn)
        return True
    done = (psn - pending.psn) * (x.pmtu or 0)
    if va != pending.va + done or length != pending.length - done:
        x.report(
            "retransmission-differs",
            (pending.number, number),
            f"the READ goes on at {va:#x} with {length} bytes, right would be "
            f"{pending.va + done:#x} with {pending.length - done}",
        )
    _again(x, psn, number, time, pending.number)
    _go_back(x, pending.last + 1)
    pending.expected = pending.begin = psn
    return False


def _go_back(x: Exchange, psn: int) -> None:
    """Stand where ``psn`` is the next request."""
    x.most = max(x.most, x.messages)
    entry = x.find(psn)
    if entry is not None and not x.first_sent:
        x.first_sent = entry.time
    if not x.high:
        x.high = x.next or 0
    while x.sent and x.sent[-1][0] >= psn:
        raw = x.sent.pop()
        x.old[raw[0]] = raw
    while x.reads and x.reads[-1].psn >= psn:
        x.reads.pop()
    before = x.sent[-1] if x.sent else x.behind
    if before is not None and before[1] == psn - 1:
        x.messages, x.open, x.left = before[5], before[8], before[9]
    else:
        x.open, x.left, x.base = -1, None, None
    x.next = psn
    x.loose = None
    if x.nak is not None:
        x.nak.resent = True
    if psn >= x.high:
        end_burst(x)
    x.settle()


def go_on_to(x: Exchange, psn: int) -> None:
    """Up to ``psn`` it stays with what was sent before: that is not sent again."""
    while x.high and (x.next or 0) < min(psn, x.high):
        raw = x.old.pop(x.next or 0, None)
        if raw is None:
            return
        x.sent.append(raw)
        x.next, x.messages, x.open, x.left = raw[1] + 1, raw[5], raw[8], raw[9]


def _resent(x: Exchange, op: int, psn: int, payload: int, number: int, count: bool = True) -> None:
    """The next of those that are sent again; it must be what it was."""
    raw = x.old.pop(psn, None)
    if raw is not None and (raw[4] != op or raw[10] != payload):
        x.report(
            "retransmission-differs",
            (raw[2], number),
            f"PSN {psn & PSN_MASK:#08x} was {opcode_name(raw[4])} with {raw[10]} bytes, and is "
            f"{opcode_name(op)} with {payload} now",
        )
    if count:
        fill_gaps(x, psn, number)
        if x.burst is not None:
            x.burst.extend(psn, number)


def _again(x: Exchange, psn: int, number: int, time: int, origin: int) -> None:
    """A request was sent again: note it, with the reason, or as the next of a burst."""
    fill_gaps(x, psn, number)
    if x.burst is not None and psn == x.burst.last + 1:
        x.burst.extend(psn, number)
        return
    end_burst(x)
    x.burst = Burst(psn, psn, (number, number), _reason(x, psn, number, time), origin)
    x.watch = True


def _reason(x: Exchange, psn: int, number: int, time: int) -> str:
    """Why the requester goes back to ``psn``; reports a wait that was cut short."""
    nak = x.fatal or x.nak
    if nak is not None:
        elapsed = f"{(time - nak.time) / 1e6:.3f} ms"
        match nak.kind:
            case NakKind.FATAL:
                return f"although NAK of packet {nak.number} refused it: that was lost behind here"
            case NakKind.RNR if psn == nak.psn and not nak.resent:
                kept = time - nak.time >= nak.wait
                if not kept:
                    x.report(
                        "rnr-early",
                        (nak.number, number),
                        f"sent again after {elapsed}, the RNR NAK asks for {nak.wait / 1e6:g} ms",
                    )
                return (
                    f"after the RNR NAK of packet {nak.number}: it asks for {nak.wait / 1e6:g} ms, "
                    f"{elapsed} passed, {'kept' if kept else 'broken'}"
                )
            case NakKind.SEQUENCE if psn <= nak.psn and not nak.resent:
                return f"asked for by the NAK of packet {nak.number}"
            case NakKind.IMPLIED if psn <= nak.psn and not nak.resent:
                return f"implied by packet {nak.number}, which passes over an answer"
    if psn < x.start:
        return "from before the first request that is seen here"
    if psn <= x.acked:
        by = f" by packet {x.acked_by}" if x.acked_by else ""
        return f"although it was answered{by}: the answer was lost behind here, or came too late"
    entry = x.find(psn)
    if entry is not None:
        return f"no answer had come {(time - entry.time) / 1e6:.3f} ms after it was sent"
    return "and the first time was not seen here"
