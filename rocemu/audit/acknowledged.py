"""What every answer says besides its own: what is acknowledged, how many messages, what credits."""

from rocemu.audit.exchange import Exchange, RawSent
from rocemu.wire import CREDITS, NO_CREDIT_LIMIT, PSN_MASK, describe_syndrome

__all__ = ["check_credits", "check_msn", "take"]

_HALF = 0x800000


def take(x: Exchange, psn: int, number: int) -> None:
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


def check_msn(x: Exchange, least: int, msn: int, number: int, exact: bool = False) -> None:
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


def check_credits(x: Exchange, syndrome: int, msn: int, number: int) -> None:
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
