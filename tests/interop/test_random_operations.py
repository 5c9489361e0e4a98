"""Random operations both ways at once, against a model of both memories.

``ROCEMU_INTEROP_OPERATIONS`` (1000) is the number of operations of each of the 16 runs;
``ROCEMU_INTEROP_SEED`` repeats a failing one.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from rocemu.verbs import MTU, SendFlags, WROpcode, mtu_bytes
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


def draw(rng: random.Random, first_wr_id: int, requester: Model, responder: Model) -> Batch:
    """A batch of random requests, carried out on the models."""
    batch = Batch([], [], [])
    target = responder.side.regions["target"]
    memory, inbox = responder.memory["target"], responder.memory["inbox"]
    reads: list[range] = []
    for number in range(BATCH):
        opcode = rng.choice((WRITE, WRITE, READ, READ, SEND, FAA, CAS, WRITE_IMM, SEND_IMM))
        length = 8 if opcode in (FAA, CAS) else _length(rng)
        remote = rng.randrange(0, SIZE - length + 1, 8) if length == 8 else _place(rng, length)
        touched = range(remote, remote + length)
        slot, imm = number * SLOT, rng.getrandbits(32)
        add, swap = rng.getrandbits(64), rng.getrandbits(64)
        flags = SendFlags(0)
        sent = requester.memory["source"][slot : slot + length]
        if opcode in (SEND, SEND_IMM):
            batch.receives.append(Receive(first_wr_id + number, SLOT, at=slot))
            batch.arrivals.append((length, imm if opcode == SEND_IMM else 0))
            inbox[slot : slot + length] = sent
        elif opcode in (WRITE, WRITE_IMM):
            flags = _fence(touched, reads)
            memory[remote : remote + length] = sent
            if opcode == WRITE_IMM:
                batch.receives.append(Receive(first_wr_id + number, 0))
                batch.arrivals.append((length, imm))
        else:
            if opcode is READ:
                reads.append(touched)
            else:
                flags = _fence(touched, reads)
            before = bytes(memory[remote : remote + length])
            requester.memory["sink"][slot : slot + length] = before
            if opcode is not READ:
                if opcode is CAS and rng.random() < 0.5:
                    add = int.from_bytes(before, "little")  # compare with what is there
                after = _atomic(opcode, int.from_bytes(before, "little"), add, swap)
                memory[remote : remote + 8] = after.to_bytes(8, "little")
        batch.requests.append(
            Send(
                first_wr_id + number,
                opcode,
                length,
                region="sink" if opcode in (READ, FAA, CAS) else "source",
                at=slot,
                addr=target.va + remote,
                rkey=target.rkey,
                imm=imm,
                flags=flags,
                compare_add=add,
                swap=swap,
            )
        )
    return batch


def _length(rng: random.Random) -> int:
    return rng.choice((0, 1, rng.randrange(64), rng.randrange(2048), rng.randrange(SLOT + 1)))


def _place(rng: random.Random, length: int) -> int:
    return rng.randrange(SIZE - length + 1)


def _fence(touched: range, reads: Sequence[range]) -> SendFlags:
    """A lost READ response makes the responder read again: what overlaps must wait for the READ."""
    if any(r.start < touched.stop and touched.start < r.stop for r in reads):
        return SendFlags.IBV_SEND_FENCE
    return SendFlags(0)


def _atomic(opcode: WROpcode, before: int, compare_add: int, swap: int) -> int:
    if opcode is FAA:
        return before + compare_add & MASK64
    return swap if before == compare_add else before


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
        common = {"mtu": mtu, "timeout": 12, "retry": 7, "rnr_retry": 7}
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
            batches = [draw(rng, first, *models), draw(rng, first, *reversed(models))]
            for batch, responder in zip(batches, reversed(ends), strict=True):
                await responder.receive(*batch.receives)
            for batch, requester in zip(batches, ends, strict=True):
                assert await requester.send(*batch.requests) == {}, name
            for batch, requester, responder in zip(batches, ends, reversed(ends), strict=True):
                await _completed(batch, requester, responder, name)
            packets = wire.take()
            for model, judge in zip(models, judges, strict=True):
                await model.check(name)
                judge.judge(packets)


async def _completed(batch: Batch, requester: Side, responder: Side, name: str) -> None:
    done = await requester.poll("send", BATCH)
    statuses = [(c.wr_id, c.status) for c in done]
    assert statuses == [(r.wr_id, "IBV_WC_SUCCESS") for r in batch.requests], name
    arrived = await responder.poll("recv", len(batch.receives))
    assert [(c.byte_len, c.imm) for c in arrived] == batch.arrivals, name
    assert {c.status for c in arrived} <= {"IBV_WC_SUCCESS"}, name
