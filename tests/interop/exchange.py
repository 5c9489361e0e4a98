"""Plays a case between two sides and looks at everything that can be seen of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from tests.interop.cases import (
    CAS,
    FAA,
    READ,
    REFUSED_AT_POST,
    SEND,
    SEND_IMM,
    WRITE,
    Case,
    Outcome,
)
from tests.interop.sides import (
    PATIENCE,
    SIZE,
    Kernel,
    Link,
    Receive,
    Rocemu,
    Send,
    Setup,
    Side,
)
from tests.interop.wiretap import Judge, Seen, Wiretap

REQUESTER_PSN, RESPONDER_PSN = 0x100, 0x800200
PATH_MTU = 1024
SOURCE = bytes(range(256)) * (SIZE // 256)
COMPARE, SWAP = 5, 7
#: As long as SOURCE and different everywhere; COMPARE AND SWAP finds what it seeks.
TARGET = COMPARE.to_bytes(8, "little") + bytes(byte ^ 0xA5 for byte in SOURCE[8:])


@asynccontextmanager
async def sides(
    requester: str, setup: Setup, *, ipv6: bool = False, responder_setup: Setup | None = None
) -> AsyncIterator[tuple[Side, Side]]:
    """Requester and responder with queue pairs in INIT: one is ``kernel``, the other ``rocemu``."""
    ends: tuple[Side, Side] = Kernel(ipv6), Rocemu(ipv6)
    if requester != "kernel":
        ends = ends[1], ends[0]
    try:
        await ends[0].open(setup)
        await ends[1].open(responder_setup or setup)
        yield ends
    finally:
        for side in ends:
            await side.close()


async def check(case: Case, expected: Outcome, requester: str, wire: Wiretap, ipv6: bool) -> None:
    """Play a case with the named requester; AssertionError for whatever is not as expected."""
    wire.take()
    async with sides(requester, Setup(), ipv6=ipv6, responder_setup=case.setup) as (ours, theirs):
        await _connect(case, ours, theirs)
        statuses = await _requests(case, ours, theirs, wire)
        receives = await theirs.poll("recv", len(expected.receives), seconds=2)
        packets = wire.take()
        seen = Outcome(
            naks=naks(packets),
            sends=tuple(statuses[wr_id] for wr_id in sorted(statuses)),
            states=(_short(await ours.state()), _short(await theirs.state())),
            receives=tuple(
                (c.wr_id, _short(c.status), c.byte_len if c.status == "IBV_WC_SUCCESS" else 0)
                for c in receives
            ),
            events=tuple(await theirs.events()),
        )
        assert seen == expected
        assert await ours.events() == []
        Judge(ours.address, REQUESTER_PSN, PATH_MTU).judge(packets)
        await _check_memory(case, statuses.get(10) == "SUCCESS", ours, theirs)


async def _connect(case: Case, requester: Side, responder: Side) -> None:
    await requester.write("source", SOURCE)
    await responder.write("target", TARGET)
    await responder.receive(
        *(Receive(100 + n, size, lkey_off=case.recv_lkey) for n, size in enumerate(case.receives))
    )
    if not case.in_init:
        await responder.connect(requester, Link(REQUESTER_PSN, RESPONDER_PSN, reads=case.reads))
    if case.deregister:
        await responder.deregister("target")
    await requester.connect(
        responder,
        Link(RESPONDER_PSN, REQUESTER_PSN, rnr_retry=case.rnr_retry),
        qpn=responder.qpn + case.qpn_off,
    )


async def _requests(case: Case, requester: Side, responder: Side, wire: Wiretap) -> dict[int, str]:
    """Post the requests; the statuses of their completions by wr_id."""
    good, target = responder.regions["good"], responder.regions["target"]
    statuses: dict[int, str] = {}

    async def completions(want: int) -> None:
        for completion in await requester.poll("send", want):
            statuses[completion.wr_id] = _short(completion.status)

    if case.warm:
        await requester.send(Send(1, WRITE, 8, addr=good.va, rkey=good.rkey))
        await completions(1)
    under_test = Send(
        10,
        case.op,
        case.length,
        region="sink" if case.op in (READ, FAA, CAS) else "source",
        lkey_off=case.lkey,
        addr=target.va + case.at,
        rkey=target.rkey + case.rkey & 0xFFFFFFFF,
        imm=0x01020304,
        compare_add=COMPARE,
        swap=SWAP,
    )
    refused = await requester.send(under_test, Send(11, WRITE, 8, addr=good.va, rkey=good.rkey))
    if 0 in refused:
        statuses[10] = REFUSED_AT_POST
    if case.late_receive:
        await _first_nak(wire)
        await responder.receive(Receive(200, 64))
    await completions(2 - len(refused))
    return statuses


async def _first_nak(wire: Wiretap) -> None:
    end = time.monotonic() + PATIENCE
    while not naks(wire.peek()):
        assert time.monotonic() < end, "no NAK came"
        await asyncio.sleep(0.001)


async def _check_memory(case: Case, done: bool, requester: Side, responder: Side) -> None:
    """What was to move has moved, and nothing else."""
    target, sink, inbox = bytearray(TARGET), bytearray(SIZE), bytearray(SIZE)
    moved = slice(case.at, case.at + case.length)
    if done and case.length:
        if case.op in (SEND, SEND_IMM):
            inbox[: case.length] = SOURCE[: case.length]
        elif case.op in (READ, FAA, CAS):
            sink[: case.length] = TARGET[moved]
        else:
            target[moved] = SOURCE[: case.length]
        if case.op == FAA:
            target[moved] = (2 * COMPARE).to_bytes(8, "little")
        elif case.op == CAS:
            target[moved] = SWAP.to_bytes(8, "little")
    if not case.deregister:
        assert await responder.read("target", SIZE) == target
    assert await requester.read("sink", SIZE) == sink
    if done:  # what a receive in error leaves in its buffer is undefined
        assert await responder.read("inbox", SIZE) == inbox


def naks(packets: Iterable[Seen]) -> tuple[tuple[int, int, int], ...]:
    """Syndrome, PSN and MSN of each NAK once: retries draw it again."""
    found = ((p.syndrome or 0, p.psn, p.msn or 0) for p in packets if p.is_nak)
    return tuple(dict.fromkeys(found))


def _short(name: str) -> str:
    return name.removeprefix("IBV_WC_").removeprefix("IBV_QPS_")
