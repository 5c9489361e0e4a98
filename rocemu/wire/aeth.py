"""AETH syndromes: ACK with credits, RNR NAK with a timer, NAK with a code ([IBTA] 9.7.5.2)."""

from enum import IntEnum

__all__ = [
    "CREDITS",
    "NO_CREDIT_LIMIT",
    "RNR_TIMERS_MS",
    "AethKind",
    "NakCode",
    "ack_syndrome",
    "aeth_kind",
    "describe_syndrome",
    "nak_syndrome",
    "rnr_syndrome",
]


class AethKind(IntEnum):
    """Bits 7:5 of a syndrome; every other value is reserved."""

    ACK = 0
    RNR_NAK = 1
    NAK = 3


class NakCode(IntEnum):
    """Bits 4:0 of a NAK's syndrome; 5-31 are reserved."""

    PSN_SEQUENCE_ERROR = 0
    INVALID_REQUEST = 1
    REMOTE_ACCESS_ERROR = 2
    REMOTE_OPERATIONAL_ERROR = 3
    INVALID_RD_REQUEST = 4


#: Credit code that says "no end-to-end limit"; QPs with an SRQ always send it.
NO_CREDIT_LIMIT = 31

#: Receive credits of credit codes 0-30.
# fmt: off
CREDITS: tuple[int, ...] = (
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
)

#: Milliseconds of RNR timer codes 0-31; code 0 is the longest ([IBTA] "RNR NAK Timer Field").
RNR_TIMERS_MS: tuple[float, ...] = (
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
    1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88,
    163.84, 245.76, 327.68, 491.52,
)
# fmt: on


def ack_syndrome(credits: int = NO_CREDIT_LIMIT) -> int:
    """Syndrome of an ACK with a credit *code* (0-31)."""
    return credits & 31


def rnr_syndrome(timer: int) -> int:
    """Syndrome of an RNR NAK with a timer code (0-31)."""
    return AethKind.RNR_NAK << 5 | timer & 31


def nak_syndrome(code: NakCode) -> int:
    """Syndrome of a NAK: Remote Access Error gives 0x62."""
    return AethKind.NAK << 5 | code


def aeth_kind(syndrome: int) -> AethKind | None:
    """What a syndrome is; None for a reserved one (bit 7 set, or bits 7:5 = 010)."""
    kind = syndrome >> 5
    return AethKind(kind) if kind in (0, 1, 3) else None


def describe_syndrome(syndrome: int) -> str:
    """``NAK Remote Access Error``, ``RNR NAK 1.28 ms``, ``ACK credits 12``, ``ACK``."""
    value = syndrome & 31
    match aeth_kind(syndrome):
        case AethKind.ACK:
            return "ACK" if value == NO_CREDIT_LIMIT else f"ACK credits {CREDITS[value]}"
        case AethKind.RNR_NAK:
            return f"RNR NAK {RNR_TIMERS_MS[value]:g} ms"
        case AethKind.NAK if value <= NakCode.INVALID_RD_REQUEST:
            return "NAK " + NakCode(value).name.replace("_", " ").title().replace("Psn", "PSN")
        case AethKind.NAK:
            return f"NAK reserved code {value}"
        case _:
            return f"reserved syndrome {syndrome:#04x}"
