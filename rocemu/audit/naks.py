"""NAKs: what they refuse or ask for, and why that may be."""

from rocemu.audit.acknowledged import check_msn, take
from rocemu.audit.causes import impossible, name_causes
from rocemu.audit.exchange import Exchange, Nak, NakKind, Sent
from rocemu.wire import (
    OPCODES,
    PSN_MASK,
    RNR_TIMERS_MS,
    AethKind,
    NakCode,
    Operation,
    describe_syndrome,
    opcode_name,
)

__all__ = ["on_nak"]

_NAK_CODES = {
    NakCode.INVALID_REQUEST: "nak-invalid-request",
    NakCode.REMOTE_ACCESS_ERROR: "nak-remote-access",
    NakCode.REMOTE_OPERATIONAL_ERROR: "nak-remote-operational",
}


def on_nak(x: Exchange, psn: int, syndrome: int, msn: int, number: int, time: int) -> None:
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
    take(x, psn - 1, number)
    if x.behind is not None and x.behind[1] == psn - 1:
        check_msn(x, x.behind[5], msn, number, exact=entry is not None and entry.psn == psn)
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
