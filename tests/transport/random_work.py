"""Random work over a bad link as a scenario file, with what a model without a network expects.

Both ends post operations at each other.  The model does every one of them once, in order, and its
memory, results and completions are the expectations of the file.
"""

import random
from dataclasses import dataclass, field

OPERATIONS = 15
"""Of each side."""
SLOT = 4096
PEER = {"requester": "responder", "responder": "requester"}


@dataclass
class Side:
    """One end: what it has, and what the other end's work does to it."""

    name: str
    source: bytes
    """Never written; what it sends, and lends to read."""
    shared: bytearray = field(default_factory=lambda: bytearray(SLOT))
    """What the peer works on."""
    posted: int = 0
    receives: int = 0
    completions: list[int] = field(default_factory=list)
    results: list[tuple[int, bytes]] = field(default_factory=list)
    """Operation and what it brought."""
    received: list[tuple[int | None, bytes]] = field(default_factory=list)
    """Immediate and data of each message that takes a receive; no data for a WRITE."""
    read_shared: bool = False
    """A READ of the peer's shared memory may be on the way: what writes there must be fenced."""


def write_scenario(seed: int) -> str:
    """The file of one seed."""
    rng = random.Random(seed)
    mtu = rng.choice((256, 256, 512, 1024))
    sides = {name: Side(name, rng.randbytes(SLOT)) for name in PEER}
    lines = [f"{s.name}: set source+0 hex:{s.source.hex()}" for s in sides.values()]
    while min(side.posted for side in sides.values()) < OPERATIONS:
        for side in sides.values():
            for _ in range(rng.randrange(6)):
                if side.posted < OPERATIONS:
                    operation = _operation(rng, side, sides[PEER[side.name]], mtu)
                    lines.append(f"{side.name}: {operation}")
        lines.append(f"+{rng.choice(('1us', '10us', '200us', '100ms'))}")
        for side in sides.values():
            lines += [_receive(side) for _ in range(rng.randrange(4)) if side.receives < OPERATIONS]
    for side in sides.values():
        lines += [_receive(side) for _ in range(OPERATIONS - side.receives)]
    for expected in (_completions, _memory):  # memory last, when all is done
        for side in sides.values():
            lines += [f"{side.name}: {line}" for line in expected(side)]
    script = "\n".join(lines)
    return f"{_head(rng, seed, mtu)}\nscript = '''\n{script}\n'''\n"


def _head(rng: random.Random, seed: int, mtu: int) -> str:
    depth = rng.choice((1, 2, 16))
    near_wrap = rng.random() < 0.3
    lines = [
        f'title = "Random work over a bad link, seed {seed}"',
        f"seed = {seed}",
        'limit = "1000s"',
        f"both.path_mtu = {mtu}",
        f"both.max_rd_atomic = {depth}",
        f"both.max_dest_rd_atomic = {depth}",
        'both.mr = ["source:4K:local_write,remote_read", "results:64K:local_write", '
        '"receives:64K:local_write", '
        '"shared:4K:local_write,remote_write,remote_read,remote_atomic"]',
    ]
    loss, double = rng.choice((0, 0.02, 0.1, 0.2, 0.3)), rng.choice((0, 0.05, 0.2))
    late = rng.choice(("20us", "100us", "10us", "200ms"))
    faults = [
        # Losses of one PSN are limited, or bad luck alone would use up retry_cnt.
        f"drop tx p={loss} most=2",
        f"dup tx p={double}",
        f"delay tx {late} p={rng.choice((0, 0.05, 0.2))} most=2",
        f"reorder tx {rng.randrange(1, 4)} p={rng.choice((0, 0.1))}",
        f"{rng.choice(('corrupt', 'bad-icrc'))} tx p={rng.choice((0, 0.02))} most=1",
    ]
    quoted = ", ".join(f'"{fault}"' for fault in faults)
    for name in PEER:
        psn = 0xFFFFFF - rng.randrange(30) if near_wrap else rng.getrandbits(24)
        lines += [f"{name}.psn = {psn:#x}", f"{name}.fault = [{quoted}]"]
    return "\n".join(lines)


def _operation(rng: random.Random, side: Side, peer: Side, mtu: int) -> str:
    """Post one operation, and do it to the model."""
    side.posted += 1
    number = side.posted
    last = number == OPERATIONS
    length = min(SLOT, rng.choice((0, 1, 7, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 6 * mtu)))
    start = rng.randrange(SLOT - length + 1)
    verb = rng.choice(
        ("send", "send", "write", "write", "write-imm", "read", "read", "add", "swap")
    )
    imm = rng.getrandbits(32) if rng.random() < 0.5 or verb == "write-imm" else None
    words = []
    if verb in ("write", "write-imm", "add", "swap") and side.read_shared:
        words.append("fence")
        side.read_shared = False
    if last or rng.random() < 0.5:
        side.completions.append(number)
    else:
        words.append("unsignaled")
    result = f">results+{(number - 1) * SLOT}"
    if verb == "read":
        area = rng.choice(("source", "shared"))
        side.read_shared |= area == "shared"
        memory = peer.source if area == "source" else peer.shared
        side.results.append((number, bytes(memory[start : start + length])))
        words[:0] = ["read", f"{area}+{start}", str(length), result]
    elif verb in ("add", "swap"):
        words[:0] = [*_atomic(rng, verb, side, peer, number), result]
    else:
        if verb != "send":
            peer.shared[start : start + length] = side.source[:length]
        if verb == "send":
            peer.received.append((imm, side.source[:length]))
        elif verb == "write-imm":
            peer.received.append((imm, b""))
        target = [] if verb == "send" else [f"shared+{start}"]
        data = f"<source+0:{length}"
        words[:0] = [verb.removesuffix("-imm"), *target, data]
        if imm is not None and verb != "write":
            words.append(f"imm={imm:#x}")
    return " ".join(words)


def _atomic(rng: random.Random, verb: str, side: Side, peer: Side, number: int) -> list[str]:
    place = 8 * rng.randrange(4)
    before = int.from_bytes(peer.shared[place : place + 8], "little")
    operand, swap = rng.choice((before, rng.getrandbits(64))), rng.getrandbits(64)
    if verb == "add":
        after, words = (
            (before + operand) % (1 << 64),
            ["fetch-add", f"shared+{place}", str(operand)],
        )
    else:
        after = swap if before == operand else before
        words = ["cmp-swap", f"shared+{place}", str(operand), str(swap)]
    peer.shared[place : place + 8] = after.to_bytes(8, "little")
    side.results.append((number, before.to_bytes(8, "little")))
    return words


def _receive(side: Side) -> str:
    side.receives += 1
    return f"{side.name}: recv receives+{(side.receives - 1) * SLOT}:{SLOT}"


def _completions(side: Side) -> list[str]:
    lines = [f"completion {number} IBV_WC_SUCCESS" for number in side.completions]
    for number, (imm, data) in enumerate(side.received, 1):
        shown = f" imm={imm:#x}" if imm is not None else ""
        length = f" byte_len={len(data)}" if data else ""
        lines.append(f"receive {number} IBV_WC_SUCCESS{length}{shown}")
    return lines


def _memory(side: Side) -> list[str]:
    lines = ["state IBV_QPS_RTS"]
    places = [
        *((f"receives+{i * SLOT}", data) for i, (_, data) in enumerate(side.received)),
        *((f"results+{(number - 1) * SLOT}", data) for number, data in side.results),
        ("shared+0", bytes(side.shared)),
        ("source+0", side.source),
    ]
    return lines + [f"memory {place} hex:{data.hex()}" for place, data in places]
