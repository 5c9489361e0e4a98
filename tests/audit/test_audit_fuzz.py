"""Whatever is in a capture: findings, never an exception, within bounds of memory.

``ROCEMU_FUZZ_SECONDS`` is how long to look for something new (15); seeds are printed on failure.
"""

from __future__ import annotations

import io
import os
import random
import time

import pytest

from rocemu.audit import pairing
from rocemu.audit.exchange import Exchange
from rocemu.audit.findings import KINDS, Finding, Findings
from rocemu.audit.icrc_explain import ExplainError, explain, take_apart
from rocemu.audit.requests import on_request
from rocemu.capture import CapturedPacket, LinkType, build_frame
from rocemu.wire import OPCODES, seal
from tests.audit.cases import connect, disconnect
from tests.audit.made import frames
from tests.audit.talk import ETHERNET, US, Talk, audit_file
from tests.audit.test_conversations_followed import everything

SECONDS = float(os.environ.get("ROCEMU_FUZZ_SECONDS", "15"))
MADE = frames()
RC = [opcode for opcode in OPCODES if opcode < 0x20]


def resealed(t: Talk, rng: random.Random, frame: bytes) -> bytes:
    """A damaged packet with its ICRC made right again, so that conversations are followed."""
    flow = t.there if frame[26:30] == bytes((10, 1, 0, 1)) else t.back
    body = bytearray(frame[42:-4])
    for _ in range(rng.randrange(1, 4)):
        if body:
            body[rng.choice((0, 1, 8, 9, 10, 11, rng.randrange(len(body)))) % len(body)] ^= (
                1 << rng.randrange(8)
            )
    if rng.random() < 0.1:
        del body[rng.randrange(len(body)) :]
    body += bytes(max(0, 5 - len(body)))
    return build_frame(flow, 9, seal(bytes(body), flow, 9))


def story(rng: random.Random) -> Talk:
    """A conversation from which packets are lost, doubled, reordered, delayed, changed."""
    t = Talk(q=rng.choice((5, 0xFFFFF0, rng.getrandbits(24))))
    if rng.random() < 0.5:
        connect(t, depth=rng.randrange(3), flow_control=rng.random() < 0.5)
    everything(t)
    for _ in range(rng.randrange(60)):
        kind = rng.random()
        if kind < 0.3:
            t.nak(rng.randrange(256), t.q - rng.randrange(-3, 6), msn=rng.getrandbits(24))
        else:
            op = rng.choice(list(OPCODES) if kind < 0.5 else RC)
            payload = rng.randbytes(rng.choice((0, 4, 8, 256, 1024)))
            psn = None if rng.random() < 0.5 else t.q + rng.choice((-9, -1, 0, 1, 2, 70_000))
            length = rng.choice((0, 8, len(payload), 5000, 1 << 31, 0xFFFFFFFF))
            if OPCODES[op].is_request and not {"DETH", "RDETH"} & {*OPCODES[op].headers}:
                t.ask(op, payload, psn=psn, length=length)
            elif set(OPCODES[op].headers) <= {"AETH", "AtomicAckETH"}:
                t.answer(op, t.q - rng.randrange(8), payload, syndrome=rng.choice((0, 0x1F, 0x62)))
    if rng.random() < 0.3:
        disconnect(t)
    t.frames += [CapturedPacket(t.now, rng.choice(MADE), 99, ETHERNET) for _ in range(5)]
    shuffled = []
    for frame in t.frames:
        if rng.random() < 0.05:
            continue
        if rng.random() < 0.05 and frame.data[12:14] == b"\x08\x00" and len(frame.data) > 50:
            frame.data = resealed(t, rng, frame.data)
        elif rng.random() < 0.03:
            frame.data = frame.data[: rng.randrange(len(frame.data))]
        shuffled.append(frame)
        if rng.random() < 0.05:
            shuffled.append(frame)
        if rng.random() < 0.05 and len(shuffled) > 3:
            shuffled.insert(-rng.randrange(1, 4), shuffled.pop())
    now = t.now
    for frame in shuffled:
        now += rng.choice((-5, 1, 10, 100, 100_000)) * US
        frame.timestamp_ns = max(0, now)
    t.frames = shuffled
    return t


def test_damaged_stories_and_damaged_files():
    seed = int.from_bytes(os.urandom(4), "big") if "ROCEMU_CI" not in os.environ else 4791
    end = time.monotonic() + SECONDS
    codes: set[str] = set()
    rounds = 0
    while time.monotonic() < end or rounds < 20:
        rounds += 1
        seed += 1
        try:
            codes |= one_round(random.Random(seed))
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
    assert len(codes) > 30, codes


def one_round(rng: random.Random) -> set[str]:
    talk = story(rng)
    findings = talk.audit()
    for finding in findings:
        assert finding.code in KINDS
        assert all(1 <= number <= len(talk.frames) for number in finding.packets)
    for frame in rng.sample(talk.frames, min(3, len(talk.frames))):
        try:
            explain(*take_apart(frame))
        except ExplainError:
            continue
    file = io.BytesIO()
    talk.save(file)
    data = bytearray(file.getvalue())
    for _ in range(rng.randrange(1, 5)):
        data[rng.randrange(60, len(data))] = rng.randrange(256)
    if rng.random() < 0.5:
        del data[rng.randrange(60, len(data)) :]
    audit_file(io.BytesIO(bytes(data)))
    return {finding.code for finding in findings}


@pytest.mark.parametrize("link", [*LinkType, 9999])
def test_noise_on_every_link(link: int):
    rng = random.Random(link)
    t = Talk()
    for _ in range(300):
        t.put(rng.randbytes(rng.randrange(150)))
        t.frames[-1].interface = type(ETHERNET)(linktype=link)
    findings = t.audit()
    assert all(finding.code in KINDS for finding in findings)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """More queue pairs and lanes than are remembered, and requests that nothing answers."""
    monkeypatch.setattr(pairing, "MAX_EXCHANGES", 10)
    monkeypatch.setattr(pairing, "MAX_LANES", 20)
    t = Talk()
    for k in range(100):
        t.qpn_b = 0x1000 + k
        for _ in range(3):
            t.ask(0x04)
    assert [finding.code for finding in t.audit()] == ["one-sided"] * 100
    found: list[Finding] = []
    findings = Findings(found.append)
    made = pairing.Pairing(findings)
    for k in range(100):
        made.add_lanes({k: (b"\1\1\1\1", b"\2\2\2\2", k, k)})
        x = made.requests_of(made.lanes[k], 0x04, 5)
        on_request(x, 0x04, 5, 0, True, 0, 0, k + 1, 0, 0)
        assert len(made.lanes) <= 20
        assert len(made._exchanges) <= 10
    made.close(0)
    findings.flush()
    assert [finding.packets for finding in found] == [(k + 1,) for k in range(100)]
    assert not made._exchanges
    assert not made._bound
    assert not any(made._unbound.values())


def test_requests_without_answers_are_forgotten():
    x = Exchange("", Findings(lambda _: None), 0)
    for k in range(20_000):
        on_request(x, 0x04, k, 0, True, 0, 0, k + 1, 0, 0)
        on_request(x, 0x0C, k, 0, True, 8, 0, k + 1, 0, 0)
    assert len(x.sent) < 10_000
    assert len(x.reads) < 10_000
    assert len(x.old) < 10_000
