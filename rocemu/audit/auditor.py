"""The audit of a capture: batch by batch into columns, packet by packet where there is state."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from ipaddress import ip_address

from rocemu.audit.answers import on_answer
from rocemu.audit.findings import Finding, Findings, Severity
from rocemu.audit.pairing import Pairing
from rocemu.audit.port_lanes import PortLane
from rocemu.audit.requests import on_request, on_unreliable
from rocemu.audit.sifting import Sifted, sift_all
from rocemu.audit.tables import PacketClass
from rocemu.capture import CaptureReader
from rocemu.wire import WireError, opcode_name, parse

__all__ = ["Audit", "Summary"]

_REQUEST, _ANSWER, _UNRELIABLE, _CNP = (
    int(PacketClass.REQUEST),
    int(PacketClass.ANSWER),
    int(PacketClass.UNRELIABLE),
    int(PacketClass.CNP),
)
_MOST_DAMAGED = 64


@dataclass(slots=True)
class Summary:
    """Counts of an audit."""

    packets: int = 0
    """In the capture."""
    roce: int = 0
    """Of RoCE, v2 and v1."""
    icrc_right: int = 0
    icrc_wrong: int = 0
    icrc_unchecked: int = 0
    """Cut by the capture, or with lengths that make no sense."""
    exchanges: int = 0
    """Queue pairs that got requests."""
    congestion_marks: int = 0
    """Packets with ECN field CE."""
    cnps: int = 0
    errors: int = 0
    warnings: int = 0
    notes: int = 0
    damage: str | None = None
    """Where and why the file could not be read further."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


class Audit:
    """Audits one capture; every finding goes to ``sink`` as soon as it is certain.

    Memory does not grow with the capture: a bounded number of queue pairs, and of what each has
    unanswered, is remembered.
    """

    def __init__(self, sink: Callable[[Finding], None]) -> None:
        self.summary = Summary()
        self.findings = Findings(sink)
        self._pairing = Pairing(self.findings)
        self._unchecked: list[int] = []
        self._last_time = 0

    def run(self, reader: CaptureReader, *, processes: int = 1) -> Summary:
        """Read the capture to its end; two ``processes`` for one that is long."""
        for sifted in sift_all(reader, processes=processes):
            self._take(sifted)
        self._finish()
        self.summary.damage = reader.damage
        return self.summary

    def _take(self, sifted: Sifted) -> None:
        summary = self.summary
        summary.packets += sifted.packets
        summary.roce += sifted.roce
        summary.icrc_right += sifted.icrc_right
        summary.icrc_wrong += sifted.icrc_wrong
        summary.icrc_unchecked += sifted.icrc_unchecked
        summary.congestion_marks += sifted.congestion_marks
        if sifted.unchecked:
            self._unchecked = [*(self._unchecked or sifted.unchecked)[:1], sifted.unchecked[-1]]
        self.findings.extend(sifted.findings)
        self._pairing.add_lanes(sifted.lanes)
        for number, opcode, psn, packet in sifted.damaged:
            exchange = self._pairing.requests_of(self._pairing.lanes[number], opcode, psn)
            exchange.damaged[psn] = packet
            if len(exchange.damaged) > _MOST_DAMAGED:
                exchange.damaged.pop(next(iter(exchange.damaged)))
        self._converse(sifted)
        self.findings.flush()

    def _converse(self, sifted: Sifted) -> None:
        """Requests, answers, CNPs and the connection manager, in the order of the capture."""
        lanes, pairing, rows = self._pairing.lanes, self._pairing, sifted.rows
        for key, kind, op, psn, payload, ackreq, length, va, aeth, number, time, icrc in zip(
            *(getattr(rows, name).tolist() for name in rows.__slots__), strict=True
        ):
            lane = lanes[key]
            if kind == _ANSWER:
                x = lane.answers
                if x is None or x.closed:
                    x = pairing.answers_of(lane, psn, number)
                if x is not None:
                    on_answer(x, op, psn, payload, aeth, number, time)
            elif kind in (_REQUEST, _UNRELIABLE):
                x = lane.requests
                if x is None or x.closed:
                    x = pairing.requests_of(lane, op, psn)
                if op & 0xE0 != x.transport:
                    x.report(
                        "transport-mixed",
                        (x.last_number, number) if x.last_number else (number,),
                        f"{opcode_name(op)} to a queue pair that got other transports before",
                    )
                elif kind == _REQUEST:
                    on_request(x, op, psn, payload, ackreq, length, va, number, time, icrc)
                else:
                    on_unreliable(x, op, psn, payload, length, number)
            elif kind == _CNP:
                self.summary.cnps += 1
                lane.note_cnp(number, time)
            elif number in sifted.mads:
                self._mad(lane, sifted.mads[number], number)
        if len(rows):
            self._last_time = int(rows.time[-1])

    def _mad(self, lane: PortLane, data: bytes, number: int) -> None:
        try:
            packet = parse(data)
        except WireError:
            return  # its own rules say so
        self._pairing.on_mad(
            str(ip_address(lane.source)), str(ip_address(lane.destination)), packet, number
        )

    def _finish(self) -> None:
        summary = self.summary
        if self._unchecked:
            self.findings.add(
                "icrc-unchecked",
                self._unchecked,
                f"{summary.icrc_unchecked} packets could not be checked, the first is packet "
                f"{self._unchecked[0]}",
            )
        self._pairing.close(self._last_time)
        self.findings.flush()
        summary.exchanges = self._pairing.made
        summary.errors = self.findings.of(Severity.ERROR)
        summary.warnings = self.findings.of(Severity.WARNING)
        summary.notes = self.findings.of(Severity.NOTE)
