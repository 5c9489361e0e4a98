"""Columns say of thousands of packets what locate, parse and icrc_of_ip say of each."""

import random
from contextlib import suppress

import numpy as np

from rocemu.audit.columns import Columns, read_columns
from rocemu.audit.networks import GRH
from rocemu.audit.tables import AETH_WORD, DEFINED, RETH_WORD
from rocemu.capture import LinkType, Located, Network, locate
from rocemu.capture.batches import SLACK, Batch
from rocemu.wire import ROCE_PORT, WireError, icrc_of_ip, parse
from rocemu.wire.icrc import icrc_of_grh
from tests.audit.made import frames

_LINKS = {
    LinkType.ETHERNET: b"",
    LinkType.LINUX_SLL: bytes(14),
    LinkType.LINUX_SLL2: b"",
    LinkType.RAW: b"",
    LinkType.NULL: b"\2\0\0\0",
}
Framed = tuple[int, bytes]


def batch_of(packets: list[Framed]) -> Batch:
    sizes = np.array([len(data) for _, data in packets], np.int64)
    return Batch(
        bytearray(b"".join(data for _, data in packets) + bytes(SLACK)),
        np.cumsum(sizes) - sizes,
        sizes,
        sizes,
        np.zeros(len(packets), np.int64),
        np.array([link for link, _ in packets], np.int64),
    )


def on_link(link: int, frame: bytes) -> Framed:
    """An Ethernet frame on another link."""
    match link:
        case LinkType.LINUX_SLL:
            return link, bytes(14) + frame[12:]
        case LinkType.LINUX_SLL2:
            return link, frame[12:14] + bytes(18) + frame[14:]
        case LinkType.RAW:
            return link, frame[14:]
        case LinkType.NULL:
            return link, b"\2\0\0\0" + frame[14:]
    return link, frame


def mutated(rng: random.Random, framed: Framed) -> Framed:
    link, data = framed[0], bytearray(framed[1])
    for _ in range(rng.choice((0, 0, 1, 2))):
        at = rng.randrange(min(len(data), 100))
        data[at] = rng.choice((0, 0xFF, data[at] ^ 1 << rng.randrange(8), rng.randrange(256)))
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)) :]
    elif rng.random() < 0.2:
        data += bytes(rng.randrange(6))
    return link, bytes(data)


def is_roce(found: Located, data: bytes) -> bool:
    if found.payload is None:
        return False
    if found.udp is None:
        return found.network is Network.GRH
    return int.from_bytes(data[found.udp + 2 : found.udp + 4], "big") == ROCE_PORT


def check(packets: list[Framed]) -> tuple[int, int]:
    """Compare; how many packets were RoCE, and how many of those could be read."""
    batch = batch_of(packets)
    starts = batch.starts.tolist()
    c = read_columns(batch, 1)
    by_number = {number: row for row, number in enumerate(c.number.tolist())}
    assert sorted(by_number) == list(by_number)
    readable = 0
    for number, (link, data) in enumerate(packets, 1):
        found, row = locate(link, data), by_number.get(number)
        contradiction = row is not None and (
            c.at.spare[row] < 0 or c.at.fragment[row] or c.at.end[row] < c.at.bth[row]
        )
        if is_roce(found, data):
            assert row is not None
            assert not contradiction
            readable += check_packet(c, row, found, data, starts[number - 1])
        else:  # what contradicts itself is kept, to be told of
            assert row is None or contradiction
    return len(by_number), readable


def check_packet(c: Columns, row: int, found: Located, data: bytes, start: int) -> bool:
    payload, end = found.payload, found.end
    assert payload is not None
    assert (c.at.bth[row] - start, c.at.end[row] - start) == (payload, end)
    sound, whole = end - payload >= 16, end <= len(data)
    assert c.sound[row] == sound
    assert c.checked[row] == (sound and whole)
    if not c.checked[row]:
        return False
    crc = icrc_of_grh if c.at.network[row] == GRH else icrc_of_ip
    assert c.icrc[row] == crc(data[found.network_at : end - 4])
    assert c.stored[row] == int.from_bytes(data[end - 4 : end], "little")
    packet = None
    with suppress(WireError):
        packet = parse(data[payload : end - 4])
    if packet is None:  # parse refuses reserved opcodes and wrong pads, too
        assert not (c.readable[row] and DEFINED[c.opcode[row]] and (end - payload) % 4 == 0)
        return False
    assert c.readable[row]
    assert (c.opcode[row], c.dest_qp[row], c.psn[row]) == (
        packet.bth.opcode,
        packet.bth.dest_qp,
        packet.bth.psn,
    )
    assert (c.pad[row], c.payload[row]) == (packet.bth.pad, len(packet.payload))
    assert c.words[row, 2] >> 31 == packet.bth.ackreq
    assert c.dma_length[row] == (packet.reth.length if packet.reth else 0)
    assert bool(RETH_WORD[c.opcode[row]]) == (packet.reth is not None)
    assert bool(AETH_WORD[c.opcode[row]]) == (packet.aeth is not None)
    if packet.aeth is not None:
        assert c.aeth[row] == packet.aeth.syndrome << 24 | packet.aeth.msn
    addressed = packet.reth or packet.atomiceth
    if addressed is not None:
        assert c.va[row] == addressed.va
    return True


def test_every_opcode_network_and_link():
    packets = [on_link(link, frame) for link in _LINKS for frame in frames()]
    roce, readable = check(packets)
    assert roce == readable > 1000


def test_an_address_pair_port_and_queue_pair_make_a_lane():
    made = frames((0x04, 0x11))
    c = read_columns(batch_of([(LinkType.ETHERNET, frame) for frame in made]), 1)
    keys = {
        (*c.addresses(row), int(c.at.source_port[row]), int(c.dest_qp[row]))
        for row in range(len(c))
    }
    assert len(set(c.lane.tolist())) == len(keys) > 6


def test_damaged_packets():
    rng = random.Random(8)
    made = [on_link(link, frame) for link in _LINKS for frame in frames()]
    roce, readable = check([mutated(rng, rng.choice(made)) for _ in range(4000)])
    assert 2000 < readable < roce


def test_noise():
    rng = random.Random(9)
    packets = [(rng.choice(list(LinkType)), rng.randbytes(rng.randrange(120))) for _ in range(3000)]
    check([*packets, *((link, b"") for link in LinkType)])


def test_no_packets():
    c = read_columns(batch_of([]), 1)
    assert len(c) == 0
