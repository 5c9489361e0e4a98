"""The demo's story: two daemons, a refused access, and what each side makes of it.

The story is data: :data:`CAUSES` says how each cause is provoked, and an :class:`Act` is a list of
steps with the status that each must come to.  :class:`Story` plays acts on two real processes and
keeps what the daemons reported, in the order in which it happened.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocemu.capture import CapturedPacket, Direction, decode_frame, open_capture
from rocemu.daemon.processes import DaemonProcess
from rocemu.wire import AethKind, NakCode, Operation, Packet, aeth_kind, nak_syndrome, parse

__all__ = ["CAUSES", "Check", "Moment", "Step", "Story"]

Record = dict[str, Any]

RESPONDER, REQUESTER = "127.0.0.1", "127.0.0.2"
_REGIONS = (
    "ro:4096:remote_read",
    "rw:64K:local_write,remote_write,remote_read,remote_atomic",
    "other:4096:local_write,remote_write,remote_read",
    "gone:4096:local_write,remote_write,remote_read",
)
_SUCCESS, _FLUSHED = "IBV_WC_SUCCESS", "IBV_WC_WR_FLUSH_ERR"
_REFUSED, _PROTECTED = "IBV_WC_REM_ACCESS_ERR", "IBV_WC_LOC_PROT_ERR"
_TEXT = '"a text of twenty-four B."'


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of the story and the status that it must complete with."""

    title: str
    operation: str
    """May name ``{va}``, ``{key}`` and ``{lkey}``, which are known only when it is played."""
    status: str


@dataclass(frozen=True, slots=True)
class Cause:
    """How a cause is provoked: what is said, and the operation that is refused."""

    title: str
    operation: str
    before: tuple[str, ...] = ()
    """A control command to the responder, just before."""
    untouched: tuple[str, str] | None = None
    """Place and length of responder memory that must still be zero afterwards."""


#: ``rocemu demo CAUSE`` for the causes that the responder's protection engine finds.
CAUSES: dict[str, Cause] = {
    "permission": Cause(
        "WRITE to a region that is for reading only",
        f"write ro+0 {_TEXT}",
        untouched=("ro+0", "4096"),
    ),
    "bounds": Cause(
        "WRITE that passes the end of the region",
        f"write rw+65528 {_TEXT}",
        untouched=("rw+65528", "8"),
    ),
    "key": Cause("WRITE with a key that was never issued", f"write @{{va:#x}}/{{key:#x}} {_TEXT}"),
    "pd": Cause(
        "WRITE to a region of another protection domain",
        f"write other+0 {_TEXT}",
        untouched=("other+0", "4096"),
    ),
    "state": Cause(
        "WRITE to a region that was deregistered a moment ago",
        f"write gone+0 {_TEXT}",
        ("deregister", "gone"),
    ),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened: a packet, or a record of one of the daemons."""

    when: float
    packet: Packet | None = None
    from_requester: bool = False
    """Whose packet or record it is."""
    record: Record = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """One of the things that the story must show, and whether it did."""

    text: str
    good: bool


class Story:
    """Plays the story; ``capture`` is where the responder writes what it saw."""

    def __init__(self, cause: str, capture: Path, folder: Path) -> None:
        """``cause`` is a key of :data:`CAUSES`, or ``lkey`` for the local half alone."""
        self.cause = cause
        self.names: dict[int, tuple[str, int]] = {}
        """Names and addresses by R_Key, for who describes packets."""
        self.regions: dict[str, Record] = {}
        """The responder's regions as it reports them."""
        self.completions: list[Record] = []
        self._capture = capture
        self._folder = folder
        self._untouched = True
        self._told = 0
        self._heard: dict[str, int] = {}

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Start both daemons, connected; raises NetError with the daemon's own sentence."""
        self._own_capture = self._folder / "requester.pcapng"
        regions = [word for spec in _REGIONS for word in ("--mr", spec)]
        self.responder = await DaemonProcess.start(
            "responder",
            [
                "--bind",
                RESPONDER,
                *regions,
                "--other-pd",
                "other",
                "--recv",
                "0",
                "--capture",
                str(self._capture),
            ],
            self._folder / "responder.sock",
        )
        listening = await self.responder.wait_for(lambda r: r["event"] == "listening")
        self.names = {mr["rkey"]: (mr["name"], mr["va"]) for mr in listening["mrs"]}
        self.regions = {mr["name"]: mr for mr in listening["mrs"]}
        self.requester = await DaemonProcess.start(
            "requester",
            [
                *("--bind", REQUESTER, "--daemon", "--mr", "src:4096:local_write"),
                *("--capture", str(self._own_capture), RESPONDER),
            ],
            self._folder / "requester.sock",
        )
        await self.requester.wait_for(lambda r: r["event"] == "connected")
        await self.responder.wait_for(lambda r: r["event"] == "connected")

    async def stop(self) -> None:
        """End the daemons that were started."""
        for name in ("requester", "responder"):
            if hasattr(self, name):
                await getattr(self, name).stop()

    # ------------------------------------------------------------------ acts

    def acts(self) -> list[list[Step]]:
        """The story as lists of steps; each act has a connection of its own."""
        good = [
            Step("READ that is allowed", "read ro+0 32", _SUCCESS),
            Step("WRITE that is allowed", f"write rw+0 {_TEXT}", _SUCCESS),
        ]
        later = Step("a later work request", f"write rw+64 {_TEXT}", _FLUSHED)
        local = Step(
            "WRITE from local memory under a wrong lkey",
            "write rw+128 <src+0:32 lkey={lkey:#x}",
            _PROTECTED,
        )
        acts = [[Step("WRITE that is allowed", f"write rw+0 {_TEXT}", _SUCCESS), local, later]]
        if self.cause in CAUSES:
            cause = CAUSES[self.cause]
            acts.insert(0, [*good, Step(cause.title, cause.operation, _REFUSED), later])
        return acts

    async def play(self, step: Step) -> Record:
        """Carry out one step; gives its completion when both sides have told all about it."""
        if step.status == _REFUSED and CAUSES[self.cause].before:
            await self.responder.ask(*CAUSES[self.cause].before)
        mark = len(self.responder.records)
        (completion,) = await self.requester.ask("post", self.words(step))
        self.completions.append(completion)
        wr_id = completion["wr_id"]
        await self.requester.wait_for(lambda r: r["event"] == "completion" and r["wr_id"] == wr_id)
        if step.status == _REFUSED and completion["status"] == _REFUSED:
            await self.responder.wait_for(_in_error, mark)
            if place := CAUSES[self.cause].untouched:
                (memory,) = await self.responder.ask("memory", *place)
                self._untouched = not any(bytes.fromhex(memory["data"]))
        return completion

    def words(self, step: Step) -> str:
        """The operation with its numbers, as it would be typed."""
        key = self._unused_key()
        return step.operation.format(va=self.regions["rw"]["va"], key=key, lkey=key)

    async def next_act(self) -> None:
        """A new connection, for a queue pair in ERR does nothing more."""
        mark = len(self.responder.records)
        await self.requester.ask("reconnect")
        await self.responder.wait_for(lambda r: r["event"] == "connected", mark)

    def _unused_key(self) -> int:
        """A key that leads nowhere in the responder's table, as far as its regions go."""
        taken = {key >> 8 for key in self.names}
        index = next(i for i in range(0xDEADBE, 0xFFFFFF) if i not in taken)
        return index << 8 | 0xEF

    # ------------------------------------------------------------------ what happened

    def news(self) -> list[Moment]:
        """What happened since the last call, in the order of time."""
        moments = [Moment(p.timestamp_ns / 1e9, *_decoded(p)) for p in self._new_packets()]
        for process in (self.responder, self.requester):
            heard = self._heard.get(process.name, 0)
            self._heard[process.name] = len(process.records)
            mine = process is self.requester
            moments += [
                Moment(record["time"], from_requester=mine, record=record)
                for record in process.records[heard:]
            ]
        return sorted(moments, key=lambda moment: moment.when)

    def _new_packets(self) -> list[CapturedPacket]:
        with open_capture(self._own_capture) as reader:
            packets = list(reader)
        fresh, self._told = packets[self._told :], len(packets)
        return fresh

    # ------------------------------------------------------------------ judgement

    def checks(self, moments: list[Moment]) -> list[Check]:
        """The seven steps, and the local half, held against all that happened."""
        checks = []
        if self.cause in CAUSES:
            checks += self._remote_checks(moments)
        violations = [m for m in moments if m.record.get("event") == "violation"]
        local = [m.record for m in violations if m.record["side"] == "local"]
        unsent = not any(_touches(m.packet, self.regions["rw"], 128) for m in moments)
        at_responder = [m for m in violations if not m.from_requester]
        checks += [
            Check(
                "a wrong lkey is caught at home: IBV_WC_LOC_PROT_ERR",
                [r["causes"] for r in local] == [["key"]] and self._came(_PROTECTED),
            ),
            Check(
                "no packet left for it, and the responder knows nothing",
                unsent and len(at_responder) == (self.cause in CAUSES),
            ),
        ]
        return checks

    def _remote_checks(self, moments: list[Moment]) -> list[Check]:
        packets = [m for m in moments if m.packet is not None]
        naks = [m.packet for m in packets if _is_nak(m.packet)]
        syndrome = nak_syndrome(NakCode.REMOTE_ACCESS_ERROR)
        nak = naks[0] if naks else None
        psn = nak.bth.psn if nak else None
        requests = [
            m.packet
            for m in packets
            if m.from_requester
            and m.packet is not None
            and m.packet.bth.psn == psn
            and m.packet.info.operation is Operation.RDMA_WRITE
        ]
        theirs = [m.record for m in moments if not m.from_requester]
        ours = [m.record for m in moments if m.from_requester]
        violation = [r for r in theirs if r.get("event") == "violation"]
        events = [r["type"] for r in theirs if r.get("event") == "async"]
        return [
            Check(f"1  the requester sent a {CAUSES[self.cause].title}", len(requests) > 0),
            Check("2  its PSN was the expected one: no sequence NAK", len(naks) == 1),
            Check(
                f"3  the responder found the cause: {self.cause}; nothing was written",
                [r["causes"] for r in violation] == [[self.cause]] and self._untouched,
            ),
            Check(
                "4  it answered with NAK 0x62, Remote Access Error, for that PSN",
                nak is not None and nak.aeth is not None and nak.aeth.syndrome == syndrome,
            ),
            Check(
                "5  it raised IBV_EVENT_QP_ACCESS_ERR and its QP went to ERR at once",
                events == ["IBV_EVENT_QP_ACCESS_ERR"] and any(map(_in_error, theirs)),
            ),
            Check(
                "6  no retry: the work request completed with IBV_WC_REM_ACCESS_ERR",
                len(requests) == 1 and self._came(_REFUSED),
            ),
            Check(
                "7  the requester's QP went to ERR: what came later was flushed",
                any(map(_in_error, ours)) and self._came(_FLUSHED),
            ),
        ]

    def _came(self, status: str) -> bool:
        return any(completion["status"] == status for completion in self.completions)


def _decoded(packet: CapturedPacket) -> tuple[Packet | None, bool]:
    frame = decode_frame(packet.linktype, packet.data)
    parsed = parse(frame.payload[:-4]) if frame is not None else None
    return parsed, packet.direction is Direction.OUT


def _is_nak(packet: Packet | None) -> bool:
    return (
        packet is not None
        and packet.aeth is not None
        and (aeth_kind(packet.aeth.syndrome) is AethKind.NAK)
    )


def _touches(packet: Packet | None, region: Record, offset: int) -> bool:
    return (
        packet is not None
        and packet.reth is not None
        and packet.reth.rkey == region["rkey"]
        and packet.reth.va == region["va"] + offset
    )


def _in_error(record: Record) -> bool:
    return record.get("event") == "qp_state" and record["to"] == "IBV_QPS_ERR"
