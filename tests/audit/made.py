"""A capture with everything in it: every opcode over every network, every CM message, oddities."""

import dataclasses
import random
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from rocemu import wire
from rocemu.capture import CapturedPacket, Interface, LinkType, PcapngWriter, build_frame
from rocemu.wire import CM_MESSAGES, OPCODES, BitFields, Flow, Packet, PayloadRule, layout
from rocemu.wire.icrc import icrc_of_grh
from tests.wire.examples import _BITS, _HEADERS

V4 = Flow("10.1.2.3", "10.1.2.4", 0xC123, tos=0x2A, ttl=61)
V6 = Flow("2001:db8::1", "2001:db8::2:3", 0xC456, tos=0xB9, ttl=7)
ETHERNET = Interface(LinkType.ETHERNET, "made0", "made for tests")
PCAPS = Path(__file__).parents[2] / "pcaps"


def golden_captures() -> list[Path]:
    """Every capture that is kept; what a run of the compose file left is not."""
    paths = sorted(path for path in PCAPS.rglob("*.pcap*") if path.is_file())
    return [path for path in paths if not path.is_relative_to(PCAPS / "compose")]


def header(rng: random.Random, name: str) -> object:
    """Any value of an extension header."""
    cls = _HEADERS[name]
    values = {
        field.name: rng.randbytes(16)
        if field.name == "reserved"
        else rng.getrandbits(_BITS[field.name])
        for field in dataclasses.fields(cls)
    }
    return cls(**values)


def packet(rng: random.Random, opcode: int, payload: bytes | None = None) -> bytes:
    """A packet without ICRC; the destination QP is not 1, whose packets are MADs."""
    info = OPCODES[opcode]
    if payload is None:
        size = 0 if info.payload is PayloadRule.NONE else rng.randrange(16, 60)
        payload = rng.randbytes(size)
    bth = wire.BTH(
        opcode,
        rng.randrange(2, 0xFFFFFF),
        rng.getrandbits(24),
        *(rng.random() < 0.5 for _ in range(3)),
        pkey=rng.getrandbits(16),
        fecn=rng.random() < 0.5,
        becn=rng.random() < 0.5,
        resv6=rng.getrandbits(6),
        resv7=rng.getrandbits(7),
    )
    headers = {name.lower(): header(rng, name) for name in info.headers}
    return wire.build(Packet(bth, payload, **headers))


def grh_frame(body: bytes, *, source: str = "2001:db8::5", destination: str = "::ffff:10.1.2.9"):
    """A RoCEv1 frame with its ICRC; ``body`` is BTH to pad."""
    grh = struct.pack(">IHBB", 0x6AB12345, len(body) + 4, 0x1B, 63)
    grh += wire.gid_of(source) + wire.gid_of(destination)
    icrc = icrc_of_grh(grh + body).to_bytes(4, "little")
    return bytes.fromhex("024200000002024200000001 8915") + grh + body + icrc


def tagged(frame: bytes, tags: bytes) -> bytes:
    return frame[:12] + tags + frame[12:]


def bit_fields(rng: random.Random, cls: type[BitFields]) -> BitFields:
    """Any values of a block of bit fields."""
    values = {
        row.name: rng.randbytes(row.bits // 8) if row.kind is bytes else rng.getrandbits(row.bits)
        for row in layout(cls)
    }
    return cls(**values)


def mads(rng: random.Random) -> Iterator[bytes]:
    """Packets to QP 1 with every CM message; REQs with and without the header of an IP service."""
    messages = [bit_fields(rng, cls) for cls in CM_MESSAGES.values()]
    for version, address in ((4, "10.1.2.3"), (6, "2001:db8::9")):
        req = bit_fields(rng, wire.CmReq)
        req.service_id = wire.service_id(7174)
        between = wire.IpCmHeader.between(address, 4000 + version, address)
        req.private_data = between.pack() + rng.randbytes(56)
        req.primary_local_gid = req.primary_remote_gid = wire.gid_of(address)
        messages.append(req)
    for message in messages:
        bth = wire.BTH(0x64, 1, rng.getrandbits(24))
        deth = wire.DETH(wire.GSI_QKEY, 1)
        yield wire.build(Packet(bth, wire.build_mad(message), deth=deth))


def frames(opcodes: Iterable[int] = OPCODES) -> list[bytes]:
    """Ethernet frames, every ICRC right."""
    rng = random.Random(7)
    bodies = [packet(rng, opcode) for opcode in opcodes]
    bodies += [
        wire.build(Packet(wire.BTH(0x11, 9, 5), aeth=wire.AETH(syndrome, 77)))
        for syndrome in (0x00, 0x1F, 0x2E, 0x45, 0x60, 0x62, 0x7F, 0x9F)
    ]
    bodies += mads(rng)
    made = []
    for body in bodies:
        for flow in (V4, V6):
            ip_id = 0 if flow.ipv6 else 0x1234
            made.append(build_frame(flow, ip_id, wire.seal(body, flow, ip_id)))
        made.append(grh_frame(body))
    vlan, qinq = bytes.fromhex("81000005"), bytes.fromhex("88a8000581000006")
    made += [tagged(made[0], vlan), tagged(made[1], qinq), tagged(made[2], vlan)]
    made.append(bytes.fromhex("ffffffffffff024200000001 0806") + bytes(28))  # ARP
    dns = build_frame(Flow("10.1.2.3", "10.1.2.4", 4000, 53), 0, b"not RoCE at all")
    return [*made, dns]


def write_capture(path: Path, data: list[bytes], interface: Interface = ETHERNET) -> Path:
    """A pcapng of ``data``, a millisecond apart."""
    with path.open("wb") as file:
        writer = PcapngWriter(file, [interface])
        for number, frame in enumerate(data):
            time = 1_800_000_000_000_000_000 + number * 1_000_000
            comments = ("first",) if not number else ()
            writer.write(CapturedPacket(time, frame, len(frame), interface, comments))
    return path
