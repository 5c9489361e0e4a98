"""How many PSNs a READ takes while the path MTU is not known."""

from rocemu.audit.exchange import MTUS, Exchange, Pending

__all__ = ["tighten", "try_mtus"]


def tighten(x: Exchange, pmtu: int) -> None:
    """The path MTU is known now, and with it how many PSNs the last READ takes."""
    x.pmtu = pmtu
    if x.loose is not None:
        _count_loose(x, x.loose, -(-x.loose.length // pmtu))


def try_mtus(x: Exchange, psn: int) -> None:
    """The request behind a READ shows how many PSNs that took, and perhaps the path MTU."""
    loose = x.loose
    if loose is None:
        return
    counts = {mtu: -(-loose.length // mtu) for mtu in MTUS}
    fitting = [mtu for mtu in MTUS if loose.psn + counts[mtu] == psn]
    if len(fitting) == 1:
        tighten(x, fitting[0])
    else:
        _count_loose(x, loose, counts[(fitting or MTUS)[0]])


def _count_loose(x: Exchange, loose: Pending, count: int) -> None:
    x.loose = None
    if x.sent and x.sent[-1][0] == loose.psn:
        loose.last = loose.psn + count - 1
        raw = x.sent.pop()
        x.sent.append((raw[0], loose.last, *raw[2:]))
        x.next = loose.last + 1
    x.settle()
