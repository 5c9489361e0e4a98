"""The end of what was sent again, and what is left open at the end of an exchange."""

from rocemu.audit.exchange import Exchange, Pending
from rocemu.wire import PSN_MASK, opcode_name

__all__ = ["close", "end_burst"]

_PATIENCE = 100_000_000  # ns that a request may be without an answer when the capture ends


def end_burst(x: Exchange) -> None:
    """Report what was sent again, now that it ended."""
    burst, x.burst = x.burst, None
    if x.high and (x.next or 0) >= x.high:
        x.high = 0
        x.old.clear()
    x.settle()
    if burst is None:
        return
    origin = (burst.origin,) if burst.origin else ()
    x.report("retransmission", (*origin, *burst.numbers), str(burst))


def close(x: Exchange, time: int | None = None) -> None:
    """Report what is left open, for nothing more will come.

    ``time`` is when the capture ended; None when the queue pairs were connected anew before.
    """
    end_burst(x)
    for gap in x.gaps:
        x.report("psn-gap", gap.packets, f"{gap}; neither sent again nor answered")
    if x.fatal is not None:
        return
    if not x.answers:
        if x.sent:
            numbers = (x.sent[0][2], x.sent[-1][2])
            x.report("one-sided", numbers, "requests without any answer in the capture")
        return
    if x.unsent is not None:
        x.report_unsent()
    refused = x.nak.psn if x.nak is not None and not x.nak.resent else x.top
    waiting = [raw for raw in x.sent if raw[0] < refused and (raw[7] or x.pending(raw[0]))]
    if not waiting:
        return
    since = min(waiting[0][3], x.first_sent or waiting[0][3])
    if not x.disconnected and time is not None and time - since < _PATIENCE:
        x.report(
            "unfinished",
            (waiting[0][2], waiting[-1][2]),
            f"{len(waiting)} requests have no answer yet, {(time - since) / 1e6:.3f} ms after",
        )
        return
    ending = " before the connection is closed" if x.disconnected else ""
    for pending in x.reads:
        if pending.psn < refused:
            x.report("read-incomplete", (pending.number,), f"{_lacking(x, pending)}{ending}")
    waiting = [raw for raw in waiting if not x.pending(raw[0])]
    if waiting:
        x.report(
            "ack-missing",
            (waiting[0][2], waiting[-1][2]),
            f"AckReq from PSN {waiting[0][0] & PSN_MASK:#08x} on has no answer{ending}",
        )


def _lacking(x: Exchange, pending: Pending) -> str:
    name = opcode_name(pending.opcode)
    whole, done = pending.last - pending.psn + 1, pending.expected - pending.psn
    if not done:
        return f"{name} has no answer"
    return f"{name} has {done} of its {whole} responses"
