"""Random operations both ways at once, against a model of both memories.

``ROCEMU_INTEROP_OPERATIONS`` (1000) is the number of operations of each of the 16 runs;
``ROCEMU_INTEROP_SEED`` repeats a failing one.
"""

from __future__ import annotations

import hashlib
import os
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from rocemu.verbs import MTU, SendFlags, mtu_bytes
from tests.interop.cases import CAS, FAA, READ, SEND, SEND_IMM, WRITE, WRITE_IMM
from tests.interop.exchange import REQUESTER_PSN, RESPONDER_PSN, sides
from tests.interop.faults import DISORDER, LOSS, bad_link
from tests.interop.sides import Link, Receive, Send, Setup, Side
from tests.interop.wiretap import Judge, Wiretap

pytestmark = pytest.mark.needs_interop

OPERATIONS = int(os.environ.get("ROCEMU_INTEROP_OPERATIONS", "1000"))
SEED = int(os.environ.get("ROCEMU_INTEROP_SEED", str(random.randrange(1 << 32))))
BATCH = 16
SIZE = 1 << 17
SLOT = 1 << 13
"""The longest message; each request of a batch has a slot of its own in source, sink and inbox."""
MASK64 = (1 << 64) - 1
CHANGES = (WRITE, WRITE_IMM, FAA, CAS)


@dataclass
class Model:
    """What one side's memory must hold."""

    side: Side
    memory: dict[str, bytearray] = field(default_factory=dict)

    async def fill(self, rng: random.Random) -> None:
        for region in ("target", "source", "sink", "inbox"):
            self.memory[region] = bytearray(rng.randbytes(SIZE))
            await self.side.write(region, bytes(self.memory[region]))

    async def check(self, what: str) -> None:
        for region in ("target", "sink", "inbox"):
            expected = self.memory[region]
            if await self.side.digest(region) == hashlib.sha256(expected).hexdigest():
                continue
            found = await self.side.read(region, SIZE)
            at = next(i for i in range(SIZE) if found[i] != expected[i])
            pytest.fail(f"{what}: {self.side.name}'s {region} differs from offset {at:#x} on")


@dataclass
class Batch:
    """Requests of one side, and the receives that the other posts for them."""

    requests: list[Send]
    receives: list[Receive]
    arrivals: list[tuple[int, int]]
    """Length and immediate of what completes each receive."""


def draw(
    rng: random.Random, first_wr_id: int, requester: Model, responder: Model, *, lossy: bool
) -> Batch:
    """A batch of random requests, carried out on the models.

    Three things of this kernel (6.12) are left out where packets get lost.  Its responder answers
    an empty READ once, and then, if that answer was lost, no more; after any empty request it
    refuses (0x62) to repeat a READ: no message to it is empty.  Its requester, gone back before a
    fenced request that it had sent already, may stop for ever: it fences none, and what changes
    memory keeps clear of what was read before.
    """
    batch, reads = Batch([], [], []), []
    for number in range(BATCH):
        opcode = rng.choice((WRITE, WRITE, READ, READ, SEND, FAA, CAS, WRITE_IMM, SEND_IMM))
        length = 8 if opcode in (FAA, CAS) else _length(rng)
        if lossy and responder.side.name == "kernel":
            length = max(length, 1)
        while True:
            place = rng.randrange(0, SIZE - length + 1, 8 if opcode in (FAA, CAS) else 1)
            touched = range(place, place + length)
            # A lost response makes the responder read again, from memory as it is by then.
            late = opcode in CHANGES and any(_overlap(touched, read) for read in reads)
            if not (late and lossy and requester.side.name == "kernel"):
                break
        if opcode is READ:
            reads.append(touched)
        request = Send(
            first_wr_id + number,
            opcode,
            length,
            region="sink" if opcode in (READ, FAA, CAS) else "source",
            at=number * SLOT,
            addr=responder.side.regions["target"].va + place,
            rkey=responder.side.regions["target"].rkey,
            imm=rng.getrandbits(32),
            flags=SendFlags.IBV_SEND_FENCE if late else SendFlags(0),
            compare_add=_compare(rng, responder.memory["target"][place : place + 8]),
            swap=rng.getrandbits(64),
        )
        batch.requests.append(request)
        _carry_out(request, place, requester.memory, responder.memory)
        if opcode in (SEND, SEND_IMM, WRITE_IMM):
            size = 0 if opcode is WRITE_IMM else SLOT
            batch.receives.append(Receive(request.wr_id, size, at=request.at))
            batch.arrivals.append((length, 0 if opcode is SEND else request.imm))
    return batch


def _length(rng: random.Random) -> int:
    return rng.choice((0, 1, rng.randrange(64), rng.randrange(2048), rng.randrange(SLOT + 1)))


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _compare(rng: random.Random, there: bytes) -> int:
    """To add, or to compare with: what is there, every other time."""
    return int.from_bytes(there, "little") if rng.random() < 0.5 else rng.getrandbits(64)


def _carry_out(
    request: Send, place: int, ours: dict[str, bytearray], theirs: dict[str, bytearray]
) -> None:
    local = slice(request.at, request.at + request.length)
    remote = slice(place, place + request.length)
    if request.opcode in (SEND, SEND_IMM):
        theirs["inbox"][local] = ours["source"][local]
    elif request.opcode in (WRITE, WRITE_IMM):
        theirs["target"][remote] = ours["source"][local]
    else:
        ours["sink"][local] = theirs["target"][remote]
        before = int.from_bytes(theirs["target"][remote], "little")
        if request.opcode is FAA:
            after = before + request.compare_add & MASK64
            theirs["target"][remote] = after.to_bytes(8, "little")
        elif request.opcode is CAS and before == request.compare_add:
            theirs["target"][remote] = request.swap.to_bytes(8, "little")


@pytest.mark.parametrize("link", ["clean", LOSS, DISORDER])
@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("mtu", list(MTU), ids=lambda mtu: str(mtu_bytes(mtu)))
async def test_random_operations(mtu: MTU, ipv6: bool, link: str, wire: Wiretap) -> None:
    rng = random.Random(f"{SEED} {mtu} {ipv6} {link}")
    name = f"ROCEMU_INTEROP_SEED={SEED}"
    async with AsyncExitStack() as stack:
        if link != "clean":
            await stack.enter_async_context(bad_link(link))
        setup = Setup(size=SIZE, recv_size=SIZE)
        ends = await stack.enter_async_context(sides("kernel", setup, ipv6=ipv6))
        common = {"mtu": mtu, "timeout": 17 if link == "clean" else 14, "retry": 7, "rnr_retry": 7}
        await ends[0].connect(ends[1], Link(RESPONDER_PSN, REQUESTER_PSN, **common))
        await ends[1].connect(ends[0], Link(REQUESTER_PSN, RESPONDER_PSN, **common))
        models = [Model(side) for side in ends]
        judges = [
            Judge(ends[0].address, REQUESTER_PSN, mtu_bytes(mtu)),
            Judge(ends[1].address, RESPONDER_PSN, mtu_bytes(mtu)),
        ]
        wire.take()
        for first in range(1, OPERATIONS // 2 + 1, BATCH):
            for model in models:
                await model.fill(rng) if first == 1 else None
            batches = [
                draw(rng, first, *pair, lossy=link != "clean")
                for pair in (models, reversed(models))
            ]
            for batch, responder in zip(batches, reversed(ends), strict=True):
                await responder.receive(*batch.receives)
            for batch, requester in zip(batches, ends, strict=True):
                assert await requester.send(*batch.requests) == {}, name
            for batch, requester, responder in zip(batches, ends, reversed(ends), strict=True):
                await _completed(batch, requester, responder, name)
            packets = wire.take()
            for model in models:
                await model.check(name)
            for judge in judges[: 2 if link == "clean" else 1]:
                judge.judge(packets)


async def _completed(batch: Batch, requester: Side, responder: Side, name: str) -> None:
    done = await requester.poll("send", BATCH)
    statuses = [(c.wr_id, c.status) for c in done]
    assert statuses == [(r.wr_id, "IBV_WC_SUCCESS") for r in batch.requests], name
    arrived = await responder.poll("recv", len(batch.receives))
    assert [(c.byte_len, c.imm) for c in arrived] == batch.arrivals, name
    assert {c.status for c in arrived} <= {"IBV_WC_SUCCESS"}, name
