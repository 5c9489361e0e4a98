"""A wrong ICRC is explained by the mistake that made it; the mistakes are made here by hand."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from rocemu.audit.icrc_explain import ExplainError, Explanation, explain, take_apart
from rocemu.audit.icrc_mistakes import STREAMS
from rocemu.audit.icrc_results import RESULTS
from rocemu.capture import CapturedPacket, Interface, build_frame, open_capture
from rocemu.wire import BTH, RETH, Flow, Op, Packet, build, seal
from tests.audit.made import grh_frame
from tests.wire.examples import CONNECTX_CNP, GOLDEN

ONES = b"\xff" * 8
INJECTED = Path(__file__).parents[2] / "pcaps" / "soft-roce" / "by-hand" / "inject.pcap"
V4 = Flow("10.0.0.1", "10.0.0.2", 0xC123, tos=0x6A, ttl=61)
V6 = Flow("fd00::1", "fd00::2", 0xC123, tos=0x6A, ttl=61)
BODY = build(
    Packet(BTH(Op.RDMA_WRITE_ONLY, 0x11, 7, becn=True), b"hello", reth=RETH(0x1000, 0x123456, 5))
)


def framed(flow: Flow = V4) -> bytearray:
    """From the IP header on, with a UDP checksum and an ICRC that is right."""
    ip = bytearray(build_frame(flow, 0x4321, seal(BODY, flow, 0x4321))[14:])
    udp = 40 if flow.ipv6 else 20
    ip[udp + 6 : udp + 8] = b"\xab\xcd"
    if flow.ipv6:
        ip[1:4] = b"\xa5\x12\x34"  # traffic class 0x6a, a flow label
    return ip


def masked(ip: bytes, *, but: str = "") -> bytearray:
    """The stream by the specification's text, without the ones in front and without the ICRC."""
    data = bytearray(ip[:-4])
    udp = 40 if data[0] >> 4 == 6 else 20
    fields = (
        {"version": (0,), "class and label": (1, 2, 3), "hop limit": (7,)}
        if udp == 40
        else {"TOS": (1,), "TTL": (8,), "IP header checksum": (10, 11)}
    )
    fields |= {"UDP checksum": (udp + 6, udp + 7), "BTH byte 4": (udp + 8 + 4,)}
    for name, places in fields.items():
        for at in places:
            if name != but:
                data[at] |= 0x0F if name == "version" else 0xFF
    return data


def little(stream: bytes) -> bytes:
    return zlib.crc32(stream).to_bytes(4, "little")


def explained(ip: bytes, icrc: bytes) -> Explanation:
    """Of the packet with another ICRC."""
    data = bytes(12) + (b"\x86\xdd" if ip[0] >> 4 == 6 else b"\x08\x00") + ip[:-4] + icrc
    return explain(*take_apart(CapturedPacket(0, data, len(data), Interface())))


def changed(ip: bytes, at: int, value: bytes) -> bytes:
    return ip[:at] + value + ip[at + len(value) :]


def lengths(ip: bytes, change: int) -> bytes:
    """Both lengths of an IPv4 packet, moved."""
    for at in (2, 24):
        (length,) = struct.unpack_from(">H", ip, at)
        ip = changed(ip, at, struct.pack(">H", length + change))
    return ip


def crc32c(data: bytes) -> int:
    """Bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def crc32_straight(data: bytes) -> int:
    """Most significant bit first, bit by bit (CRC-32/BZIP2)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
    return crc ^ 0xFFFFFFFF


IP = bytes(framed())
IP6 = bytes(framed(V6))
STREAM = ONES + masked(IP)
#: How the mistake is made -> the name that it must be given, and a word of its text.
MISTAKES: dict[str, tuple[bytes, bytes, str, str]] = {
    "big-endian": (IP, little(STREAM)[::-1], "byte-order", "most significant"),
    "no complement": (
        IP,
        (zlib.crc32(STREAM) ^ 0xFFFFFFFF).to_bytes(4, "little"),
        "not-complemented",
        "complement",
    ),
    "from 0": (IP, zlib.crc32(STREAM, 0xFFFFFFFF).to_bytes(4, "little"), "begun-at-zero", "at 0"),
    "Castagnoli": (IP, crc32c(STREAM).to_bytes(4, "little"), "crc32c", "Castagnoli"),
    "straight": (IP, crc32_straight(STREAM).to_bytes(4, "little"), "not-reflected", "other order"),
    **{
        f"{field} unmasked": (IP, little(ONES + masked(IP, but=field)), "unmasked", field)
        for field in ("TOS", "TTL", "IP header checksum", "UDP checksum", "BTH byte 4")
    },
    "nothing masked": (IP, little(ONES + IP[:-4]), "unmasked", "TOS, TTL"),
    "hop limit unmasked": (
        IP6,
        little(ONES + masked(IP6, but="hop limit")),
        "unmasked",
        "hop limit",
    ),
    "BTH byte 4 unmasked, IPv6": (
        IP6,
        little(ONES + masked(IP6, but="BTH byte 4")),
        "unmasked",
        "BTH byte 4",
    ),
    "unmasked and big-endian": (
        IP,
        little(ONES + masked(IP, but="TTL"))[::-1],
        "unmasked+byte-order",
        "TTL, written most",
    ),
    "no ones in front": (IP, little(masked(IP)), "leading-ones", "0 of them"),
    "zeros in front": (IP, little(bytes(8) + masked(IP)), "leading-zeros", "zeros"),
    "pad left out": (IP, little(STREAM[:-3]), "pad-left-out", "without the pad"),
    "pad left out of the lengths, too": (
        IP,
        little(ONES + masked(lengths(IP, -3))[:-3]),
        "pad-left-out",
        "both lengths",
    ),
    "ICRC as zeros": (IP, little(STREAM + bytes(4)), "icrc-included", "zeros"),
    "no IP header": (IP, little(ONES + masked(IP)[20:]), "header-left-out", "network header"),
    "no UDP header": (
        IP,
        little(ONES + masked(IP)[:20] + masked(IP)[28:]),
        "header-left-out",
        "UDP header",
    ),
    "as native InfiniBand": (IP, little(masked(IP)[28:]), "header-left-out", "both headers, and"),
    "lengths without the ICRC": (
        IP,
        little(ONES + masked(lengths(IP, -4))),
        "wrong-length",
        "both lengths -4",
    ),
    "IP length without the header": (
        IP,
        little(ONES + masked(changed(IP, 2, struct.pack(">H", len(IP) - 20)))),
        "wrong-length",
        "the IP length -20",
    ),
    "lengths not filled in": (
        IP,
        little(ONES + masked(changed(changed(IP, 2, b"\0\0"), 24, b"\0\0"))),
        "length-zero",
        "both lengths",
    ),
    "ports exchanged": (
        IP,
        little(ONES + masked(changed(IP, 20, IP[22:24] + IP[20:22]))),
        "swapped",
        "ports",
    ),
    "addresses exchanged": (
        IP,
        little(ONES + masked(changed(IP, 12, IP[16:20] + IP[12:16]))),
        "swapped",
        "addresses",
    ),
    "translated address": (
        IP,
        little(ONES + masked(changed(IP, 12, bytes((10, 0, 0, 77))))),
        "changed-address",
        "source 10.0.0.77",
    ),
    "loopback": (
        IP,
        little(ONES + masked(changed(IP, 16, bytes((127, 0, 0, 1))))),
        "changed-address",
        "destination 127.0.0.1",
    ),
    "DF not set": (IP, little(ONES + masked(changed(IP, 6, b"\0\0"))), "changed-flags", "0x0000"),
    "another IP ID": (
        IP,
        little(ONES + masked(changed(IP, 4, b"\x80\x01"))),
        "changed-ip-id",
        "IP ID 32769, not 17185",
    ),
    "another source port": (
        IP,
        little(ONES + masked(changed(IP, 20, b"\xc9\x99"))),
        "changed-port",
        "port 51609, not 49443",
    ),
    "ones for zeros": (
        IP,
        little(
            ONES
            + bytes(
                0 if at in (1, 8, 10, 11, 26, 27, 32) else value
                for at, value in enumerate(masked(IP))
            )
        ),
        "masked-with-zeros",
        "zeros",
    ),
    "P_Key masked": (
        changed(IP, 30, b"\x7f\xff"),
        little(STREAM),
        "masked-too-much",
        "P_Key",
    ),
    "AckReq byte masked": (
        IP,
        little(changed(STREAM, 8 + 28 + 8, b"\xff")),
        "masked-too-much",
        "BTH byte 8",
    ),
    "as RoCEv1": (
        IP,
        grh_frame(BODY, source="::ffff:10.0.0.1", destination="::ffff:10.0.0.2")[-4:],
        "as-rocev1",
        "GRH",
    ),
    "not written": (IP, bytes(4), "not-written", "never filled in"),
    "a bit of the payload": (
        changed(IP, len(IP) - 9, bytes((IP[-9] ^ 0x10,))),
        IP[-4:],
        "bit-flip",
        "bit 4 of byte 3 of payload",
    ),
    "a bit of the PSN": (
        changed(IP, 28 + 11, bytes((IP[28 + 11] ^ 1,))),
        IP[-4:],
        "bit-flip",
        "bit 0 of byte 11 of the BTH",
    ),
    "a bit of the R_Key": (
        changed(IP, 40 + 9, bytes((IP[40 + 9] ^ 0x80,))),
        IP[-4:],
        "bit-flip",
        "bit 7 of byte 9 behind the BTH",
    ),
    "a bit of the ICRC": (
        IP,
        IP[-4:-1] + bytes((IP[-1] ^ 0x40,)),
        "icrc-bit-flip",
        "bit 6 of byte 3",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str):
    ip, icrc, cause, word = MISTAKES[name]
    explanation = explained(ip, icrc)
    assert not explanation.right
    first, *more = explanation.causes
    assert not more or cause.startswith("changed-")
    assert first.name == cause
    assert word in first.text


def test_every_row_of_the_tables_has_a_mistake_here():
    made = {part for _, _, cause, _ in MISTAKES.values() for part in cause.split("+")}
    rows = {row.name for row in (*STREAMS, *RESULTS) if row.name}
    assert rows - made == {row for row in rows if row.endswith("-byte-order")}


@pytest.mark.parametrize("name", [row.name for row in RESULTS if row.name.endswith("-byte-order")])
def test_the_other_order_of_bytes(name: str):
    _, icrc, _, _ = next(m for m in MISTAKES.values() if m[2] == name.removesuffix("-byte-order"))
    assert explained(IP, icrc[::-1]).causes[0].name == name


@pytest.mark.parametrize(
    "ip", [*(data for data in GOLDEN.values()), CONNECTX_CNP, IP, IP6], ids=lambda ip: ip[-4:].hex()
)
def test_right_ones(ip: bytes):
    explanation = explained(ip, ip[-4:])
    assert explanation.right
    assert explanation.causes == ()
    stream = b"".join(data for _, data in explanation.sections)
    assert stream == ONES + masked(ip)
    assert explanation.computed == little(stream) == ip[-4:]


def test_the_worked_example():
    """The ConnectX-4 Lx CNP, whose stream and CRC are printed in the protocol's literature."""
    explanation = explained(CONNECTX_CNP, CONNECTX_CNP[-4:])
    assert explanation.crc == 0x2A00FD82
    assert [(name, data.hex()) for name, data in explanation.sections] == [
        ("in place of the LRH", "ff" * 8),
        ("IPv4", "45ff003c718c4000ff11ffff0a0011010a001201"),
        ("UDP", "000012b70028ffff"),
        ("BTH", "8100ffffff00011800000000"),
        ("CNPPad", "00" * 16),
    ]
    assert [sorted(masked) for masked in explanation.masked] == [
        list(range(8)),
        [1, 8, 10, 11],
        [6, 7],
        [4],
        [],
    ]


def test_rocev1():
    frame = grh_frame(BODY)
    explanation = explain(*take_apart(CapturedPacket(0, frame, len(frame), Interface())))
    assert explanation.right
    assert [name for name, _ in explanation.sections][1:4] == ["GRH", "BTH", "RETH"]
    frame = frame[:-5] + bytes((frame[-5] ^ 1,)) + frame[-4:]
    explanation = explain(*take_apart(CapturedPacket(0, frame, len(frame), Interface())))
    assert [cause.name for cause in explanation.causes] == ["bit-flip"]


def test_packets_made_wrong_on_purpose_for_the_kernel():
    with open_capture(INJECTED) as reader:
        packets = list(reader)
    causes = {
        number: [cause.name for cause in explain(*take_apart(packets[number - 1])).causes]
        for number in (2, 3, 4, 5)
    }
    assert causes == {2: [], 3: ["byte-order"], 4: ["not-written"], 5: ["changed-ip-id"]}


def test_noise_is_not_explained():
    found = [
        explained(IP, struct.pack(">I", n * 0x9E3779B9 & 0xFFFFFFFF)).causes for n in range(1, 60)
    ]
    assert not any(found)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (bytes(12) + b"\x08\x06" + bytes(28), "no RoCE packet"),
        (bytes(12) + b"\x08\x00" + bytes(40), "no RoCE packet"),
        (bytes(12) + b"\x08\x00" + IP[:50], "the capture has 64 bytes of it"),
        (build_frame(V4, 0, bytes(15))[:], "a BTH with its ICRC is 16"),
        (b"", "no RoCE packet"),
    ],
)
def test_what_has_no_icrc(data: bytes, sentence: str):
    with pytest.raises(ExplainError, match=sentence):
        take_apart(CapturedPacket(0, data, len(data), Interface()))


@pytest.mark.parametrize("bits", [0x03, 0x81, 0xFF])
def test_more_than_one_bit_is_not_called_one(bits: int):
    (cause,) = explained(changed(IP, 50, bytes((IP[50] ^ bits,))), IP[-4:]).causes
    assert cause.name == "byte-change"
    assert cause.text == f"byte 10 behind the BTH changed: {IP[50] ^ bits:#04x} was {IP[50]:#04x}"
