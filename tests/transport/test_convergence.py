"""Whatever the network loses, doubles and reorders, both ends finish as if it had not.

Two sides post random work at each other over a link that misbehaves, and a model without a network
says what memory, results and completions must be in the end.  ``ROCEMU_SEED=17`` runs one seed.
"""

import os
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from rocemu.verbs import MTU, QPState, SendFlags, WCStatus, WROpcode
from tests.transport.fabric import A_ADDRESS, LATENCY, Fabric, Sent, Side, connect

SEEDS = [int(os.environ["ROCEMU_SEED"])] if "ROCEMU_SEED" in os.environ else range(200)
OPERATIONS = 30

SEND, SEND_IMM = WROpcode.IBV_WR_SEND, WROpcode.IBV_WR_SEND_WITH_IMM
WRITE, WRITE_IMM = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM
READ, ADD = WROpcode.IBV_WR_RDMA_READ, WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD
SWAP = WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP

# Parts of each side's region: what it sends and lends to read, what its peer works on, and a slot
# for each result of an operation of its own and for each receive.
SOURCE, SHARED, SLOT = 0, 4096, 4096
RESULTS = 2 * SLOT
RECEIVES = RESULTS + OPERATIONS * SLOT
SIZE = RECEIVES + OPERATIONS * SLOT
#: Most losses of packets that concern one PSN, so that retry_cnt 7 is never used up by bad luck.
MOST_LOSSES = 3


class BadLink:
    """Loses, doubles and delays packets."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.loss = rng.choice((0.0, 0.02, 0.1, 0.2, 0.3))
        self.double = rng.choice((0.0, 0.05, 0.2))
        self.delays = rng.choice(((1,), (1, 1, 1, 2), (1, 1, 3, 10), (1, 1, 1, 1, 50, 20000)))
        self.losses: Counter[tuple[bool, int]] = Counter()

    def __call__(self, sent: Sent) -> tuple[float, ...]:
        from_requester = sent.packet.info.is_request
        concerns = ((sent.source == A_ADDRESS) == from_requester, sent.packet.bth.psn)
        if self.rng.random() < self.loss and self.losses[concerns] < MOST_LOSSES:
            self.losses[concerns] += 1
            return ()
        copies = 2 if self.rng.random() < self.double else 1
        return tuple(LATENCY * self.rng.choice(self.delays) for _ in range(copies))


@dataclass
class Model:
    """What one side's work does to its peer, without a network."""

    source: bytes
    """The side's own; the peer's is ``lent``."""
    lent: bytes
    shared: bytearray = field(default_factory=lambda: bytearray(SLOT))
    results: dict[int, bytes] = field(default_factory=dict)
    completions: list[int] = field(default_factory=list)
    received: list[tuple[int | None, bytes]] = field(default_factory=list)
    """Immediate and data of each message that takes a receive; no data for a WRITE."""
    read_shared: bool = False
    """A READ of shared memory may be on the way: what writes there must be fenced."""


def post_random(rng: random.Random, side: Side, peer: Side, model: Model, wr_id: int) -> None:
    """Post one operation, and do it to the model."""
    mtu = side.qp.path_mtu
    length = min(SLOT, rng.choice((0, 1, 7, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 7 * mtu)))
    start = rng.randrange(SLOT - length + 1)
    opcode = rng.choice((SEND, SEND_IMM, WRITE, WRITE, WRITE_IMM, READ, READ, ADD, SWAP))
    flags = rng.choice((SendFlags(0), SendFlags.IBV_SEND_SIGNALED))
    imm = rng.getrandbits(32)
    result = side.sge(RESULTS + wr_id * SLOT, length)
    data = model.source[:length]
    if opcode in (WRITE, WRITE_IMM, ADD, SWAP) and model.read_shared:
        flags |= SendFlags.IBV_SEND_FENCE
        model.read_shared = False
    if opcode is READ:
        area = rng.choice((SOURCE, SHARED))
        model.read_shared |= area == SHARED
        model.results[wr_id] = bytes(
            (model.lent if area == SOURCE else model.shared)[start:][:length]
        )
        side.post(READ, result, wr_id=wr_id, to=(peer.mr, area + start), flags=flags)
    elif opcode in (ADD, SWAP):
        place = 8 * rng.randrange(4)
        before = int.from_bytes(model.shared[place : place + 8], "little")
        compare_add, swap = rng.choice((before, rng.getrandbits(64))), rng.getrandbits(64)
        after = swap if before == compare_add else before
        if opcode is ADD:
            after = (before + compare_add) % (1 << 64)
        model.shared[place : place + 8] = after.to_bytes(8, "little")
        model.results[wr_id] = before.to_bytes(8, "little")
        side.post(
            opcode,
            side.sge(RESULTS + wr_id * SLOT, 8),
            wr_id=wr_id,
            to=(peer.mr, SHARED + place),
            flags=flags,
            compare_add=compare_add,
            swap=swap,
        )
    else:
        if opcode in (WRITE, WRITE_IMM):
            model.shared[start : start + length] = data
        if opcode is not WRITE:
            message = b"" if opcode is WRITE_IMM else data
            model.received.append((imm if opcode is not SEND else None, message))
        side.post(
            opcode,
            side.sge(SOURCE, length),
            wr_id=wr_id,
            to=(peer.mr, SHARED + start),
            flags=flags,
            imm_data=imm,
        )
    if flags & SendFlags.IBV_SEND_SIGNALED:
        model.completions.append(wr_id)


def play(seed: int) -> tuple[Fabric, list[tuple[Side, Side, Model]]]:
    """Random work both ways over a bad link, until nothing is left to happen."""
    rng = random.Random(seed)
    near_wrap = rng.random() < 0.3
    psns = [0xFFFFFF - rng.randrange(40) if near_wrap else rng.getrandbits(24) for _ in "ab"]
    depth = rng.choice((1, 2, 16))
    fabric = connect(
        seed=seed,
        mtu=rng.choice((MTU.IBV_MTU_256, MTU.IBV_MTU_512, MTU.IBV_MTU_1024)),
        a_psn=psns[0],
        b_psn=psns[1],
        size=SIZE,
        link=BadLink(rng),
        a_attr={"max_rd_atomic": depth, "max_dest_rd_atomic": depth},
        b_attr={"max_rd_atomic": depth, "max_dest_rd_atomic": depth},
    )
    sources = [rng.randbytes(SLOT) for _ in "ab"]
    ends = []
    for side, peer, mine, theirs in (
        (fabric.a, fabric.b, *sources),
        (fabric.b, fabric.a, *reversed(sources)),
    ):
        side.mr.memory[SOURCE : SOURCE + SLOT] = mine
        ends.append((side, peer, Model(mine, theirs)))
    posted = dict.fromkeys((fabric.a.device.address, fabric.b.device.address), 0)
    receives = dict(posted)
    while min(posted.values()) < OPERATIONS:
        for side, peer, model in ends:
            address = side.device.address
            for _ in range(rng.randrange(8)):
                if posted[address] < OPERATIONS:
                    post_random(rng, side, peer, model, posted[address])
                    posted[address] += 1
        fabric.run(rng.choice((0.0, LATENCY, 20 * LATENCY, 0.1)))
        for side, _, _ in ends:
            for _ in range(rng.randrange(4)):
                post_receive(side, receives)
    for side, _, _ in ends:
        while receives[side.device.address] < OPERATIONS:
            post_receive(side, receives)
    fabric.run(1000.0)
    return fabric, ends


def post_receive(side: Side, receives: dict[str, int]) -> None:
    index = receives[side.device.address]
    if index < OPERATIONS:
        side.recv(1000 + index, side.sge(RECEIVES + index * SLOT, SLOT))
        receives[side.device.address] += 1


@pytest.mark.parametrize("seed", SEEDS)
def test_both_ends_finish_as_without_a_network(seed: int) -> None:
    replay = f"replay with ROCEMU_SEED={seed}"
    fabric, ends = play(seed)
    for side, peer, model in ends:
        memory = side.mr.memory
        assert side.qp.state is QPState.IBV_QPS_RTS, replay
        assert [(wc.wr_id, wc.status) for wc in side.sends()] == [
            (wr_id, WCStatus.IBV_WC_SUCCESS) for wr_id in model.completions
        ], replay
        received = peer.receives()
        assert [(wc.wr_id, wc.status, wc.imm_data) for wc in received] == [
            (1000 + i, WCStatus.IBV_WC_SUCCESS, imm) for i, (imm, _) in enumerate(model.received)
        ], replay
        for wr_id, result in model.results.items():
            start = RESULTS + wr_id * SLOT
            assert bytes(memory[start : start + len(result)]) == result, replay
        for i, (_, message) in enumerate(model.received):
            start = RECEIVES + i * SLOT
            assert bytes(peer.mr.memory[start : start + len(message)]) == message, replay
        assert bytes(peer.mr.memory[SHARED : SHARED + SLOT]) == model.shared, replay
        assert bytes(memory[SOURCE : SOURCE + SLOT]) == model.source, replay
        assert side.async_events() == [], replay
        # Nothing is stuck, and both ends agree on where they are.
        assert not side.qp.requester.queue, replay
        assert side.qp.requester.una == peer.qp.responder.epsn, replay
        assert peer.qp.responder.msn == OPERATIONS, replay
    assert fabric.a.device.next_timer() is None, replay
    assert fabric.b.device.next_timer() is None, replay
