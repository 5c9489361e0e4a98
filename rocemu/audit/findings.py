"""What an audit can find: the table of codes, and findings on their way to whoever shows them.

Sources of the clauses: the InfiniBand Architecture Specification, volume 1, by section or
compliance statement; RoCEv2 is its Annex A17.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["KINDS", "Finding", "FindingKind", "Findings", "Severity"]


class Severity(StrEnum):
    """How bad it is; the audit fails on errors, with ``--strict`` on warnings too."""

    ERROR = "error"
    """Somebody broke a rule of the protocol."""
    WARNING = "warning"
    """Within the rules, and yet something went wrong: loss, a retry, a refusal."""
    NOTE = "note"
    """Worth knowing, such as what could not be judged."""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A row of the table: what a code means."""

    code: str
    severity: Severity
    meaning: str
    clause: str


_MOST_FAULTS = 4096

_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

# fmt: off
_ROWS: tuple[tuple[str, Severity, str, str], ...] = (
    # the packet by itself
    ("icrc-bad", _E, "The ICRC is not that of the packet; every receiver drops it in silence",
     "A17.3.3"),
    ("icrc-unchecked", _N, "The capture cut packets, so that their ICRC could not be computed",
     "A17.3.3"),
    ("header-damaged", _E,
     "Not to the RoCE port or protocol, and yet with the right ICRC if it were: a changed header",
     "A17.3.3"),
    ("datagram-short", _E, "Too short for a BTH with its ICRC, or for the headers of its opcode",
     "9.2, 9.6"),
    ("datagram-length", _E, "The lengths in the IP and UDP headers contradict each other", "A17.3"),
    ("fragmented", _E, "A RoCE packet was fragmented by IP", "A17.3"),
    ("tver", _E, "Transport header version other than 0", "9.2"),
    ("opcode-reserved", _E, "An opcode that nothing defines", "9.2, table OpCode"),
    ("pad", _E, "Headers, payload and pad are no multiple of 4 bytes", "9.2"),
    ("pad-not-zero", _W, "Pad bytes that are not 0", "9.2"),
    ("pkey", _E, "A P_Key whose low 15 bits are 0", "9.2"),
    ("reserved-bits", _W, "Reserved bits of the BTH are not 0", "9.2"),
    ("qpn-reserved", _E, "DestQP 0, which RoCE does not have", "A17"),
    ("payload-length", _E, "A payload that its opcode may not carry, whatever the path MTU",
     "9.7.4.1, C9-92"),
    ("write-length", _E, "The payload of an RDMA WRITE is not what its RETH announces",
     "9.7.4.1, C9-94"),
    ("dma-length", _E, "A DMA length over 2^31", "C9-94"),
    ("atomic-alignment", _E, "The address of an atomic is no multiple of 8", "9.4.5"),
    ("aeth-reserved", _E, "A reserved AETH syndrome", "9.7.5.2"),
    ("answer-syndrome", _E, "A READ response or atomic acknowledge whose syndrome is not an ACK",
     "9.7.5.2"),
    ("gsi-qkey", _E, "To QP 1 with another Q_Key than 0x80010000", "9.8.3, chapter 16"),
    ("cm-malformed", _E, "To QP 1, of the connection manager's class, and no message of it",
     "12.6, 13.4"),
    ("cm-rejected", _W, "A connection was rejected", "12.6.7"),
    ("cnp-format", _E, "A CNP with BECN 0, FECN or AckReq 1, a PSN, or reserved bytes not 0",
     "A17.9.3"),
    ("cnp-rate", _N, "CNPs closer together than one in 50 us", "A17.9; DCQCN"),
    # requests
    ("psn-gap", _W, "Requests are missing: lost, or dropped for a wrong ICRC", "9.7.3"),
    ("capture-gap", _N, "Requests are missing from the capture only: they were answered", "9.7.3"),
    ("psn-far", _W, "A PSN that is nowhere near those before", "9.7.3"),
    ("reordered", _W, "A request arrived late, behind its successors", "9.7.3"),
    ("duplicate", _W, "The same packet twice within a moment: doubled by network or capture",
     "9.7.4.1"),
    ("retransmission", _W, "Requests were sent again; the text says why", "9.7.3, 9.7.6"),
    ("retransmission-differs", _E, "A PSN was used again for another request", "9.7.3"),
    ("read-psn", _E, "A request takes a PSN that the READ before it keeps for its responses",
     "9.7.3"),
    ("opcode-sequence", _E, "First, Middle, Last and Only in a wrong order", "9.7.4.1"),
    ("transport-mixed", _E, "Opcodes of two transports to one queue pair", "9.6"),
    ("pmtu", _E, "A packet that does not fill, or exceeds, the path MTU of its queue pair",
     "9.7.4.1, C9-92"),
    ("read-depth", _E, "More READs and atomics outstanding than the responder agreed to serve",
     "9.7.7, 12.7"),
    ("credits-exceeded", _W, "Messages beyond the credits that end-to-end flow control gave",
     "9.7.7"),
    ("rnr-early", _E, "Sent again before the time that the RNR NAK asked for", "9.7.5.2"),
    ("request-in-error", _E, "A queue pair sends requests after its own fatal NAK",
     "9.9.3.1, 10.3"),
    # answers
    ("nak-psn-sequence", _W, "NAK: a packet was missing", "9.7.5.2"),
    ("rnr-nak", _W, "RNR NAK: the responder was not ready", "9.7.5.2"),
    ("nak-invalid-request", _W, "NAK Invalid Request", "9.7.5.2, C9-222.1.1"),
    ("nak-remote-access", _W, "NAK Remote Access Error", "9.7.5.2.4, C9-222.1.1"),
    ("nak-remote-operational", _W, "NAK Remote Operational Error", "9.7.5.2"),
    ("nak-impossible", _E, "A NAK for which the request gives no cause", "9.7.5.2, C9-88"),
    ("nak-repeated", _E, "The same sequence NAK again before the missing packet was sent again",
     "9.7.5.2"),
    ("nak-acknowledged", _E, "A NAK for a request that was acknowledged before", "9.7.5.1, C9-105"),
    ("answer-after-nak", _E, "An answer after a NAK that puts the queue pair into the error state",
     "9.9.3.1, 10.3"),
    ("ack-unsent", _E, "An answer to a PSN that was never sent", "9.7.6"),
    ("ack-backwards", _W, "An acknowledge older than one before it", "9.7.5.1"),
    ("answer-kind", _E, "An answer of a kind that the request does not have", "9.7.5.1, C9-148"),
    ("answer-skipped", _W, "An answer passes over a READ or atomic without answer: implied NAK",
     "9.7.6"),
    ("read-response-gap", _W, "Responses of a READ are missing: implied NAK", "9.7.6"),
    ("read-response-sequence", _E, "READ responses First, Middle, Last and Only in a wrong order",
     "9.7.5.1"),
    ("read-response-length", _E, "READ responses that do not add up to the length asked for",
     "9.7.6"),
    ("read-incomplete", _W, "A READ or atomic without its whole answer", "9.7.5.1, 9.7.6"),
    ("ack-missing", _W, "AckReq without an acknowledge", "9.7.5.1"),
    ("unfinished", _N, "Work was under way when the capture ended", "9.7"),
    ("msn", _E, "The MSN is not the number of messages that were completed", "9.7.7, C9-148"),
    ("credits-mixed", _W, "One responder gives now credits, now no limit", "9.7.7"),
    ("one-sided", _N, "Requests without any answer in the capture, or answers without requests",
     "9.7"),
)
# fmt: on

#: Every code, in the order of the table.
KINDS: dict[str, FindingKind] = {
    code: FindingKind(code, severity, meaning, f"[IBTA] {clause}")
    for code, severity, meaning, clause in _ROWS
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    kind: FindingKind
    packets: tuple[int, ...]
    """Numbers in the capture, ascending; of a run the first and the last."""
    text: str
    """One sentence."""
    where: str = ""
    """``10.0.0.1 -> 10.0.0.2 QP 0x11``, the requester first; empty when it is about no QP."""

    @property
    def code(self) -> str:
        return self.kind.code

    @property
    def severity(self) -> Severity:
        return self.kind.severity

    def to_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "severity": self.severity.value,
            "packets": list(self.packets),
            "where": self.where,
            "text": self.text,
            "clause": self.kind.clause,
        }


class Findings:
    """Takes findings, counts them, and hands them on in the order of the packets.

    ``sink`` gets each once; memory does not grow with their number.
    """

    def __init__(self, sink: Callable[[Finding], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._sink = sink
        self._waiting: list[Finding] = []
        self._faults: dict[int, str] = {}

    def add(self, code: str, packets: Iterable[int], text: str, where: str = "") -> None:
        """``packets`` in any order; ``code`` is a key of :data:`KINDS`."""
        self.extend([Finding(KINDS[code], tuple(sorted(set(packets))), text, where)])

    def extend(self, findings: Iterable[Finding]) -> None:
        """Findings made elsewhere."""
        for finding in findings:
            self.counts[finding.code] += 1
            self._waiting.append(finding)
            if finding.severity is Severity.ERROR:
                self._blame(finding)

    def _blame(self, finding: Finding) -> None:
        self._faults[finding.packets[-1]] = finding.code
        if len(self._faults) > _MOST_FAULTS:
            self._faults.pop(next(iter(self._faults)))

    def fault_of(self, packet: int) -> str | None:
        """The code of a rule that the packet broke, one of the errors found lately."""
        return self._faults.get(packet)

    def flush(self) -> None:
        """Hand on what came since the last time, sorted by the last packet of each."""
        self._waiting.sort(key=lambda finding: finding.packets[-1:])
        for finding in self._waiting:
            self._sink(finding)
        self._waiting.clear()

    def of(self, severity: Severity) -> int:
        """How many findings of a severity there were."""
        return sum(n for code, n in self.counts.items() if KINDS[code].severity is severity)
