"""tshark reads what the layers build: the same opcodes, fields and bytes.

tshark 4.0 does not know FLUSH, ATOMIC WRITE and RoCEv2's CNP; of XRC it reads the BTH alone, of RD
it looks for the headers eight bytes too late; it counts the pad as data, and takes short SENDs for
RPC-over-RDMA, which is switched off here.
"""

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw, raw

import layers
from rocemu.wire import CNP_OPCODE, OPCODES, Op, OpcodeInfo, Operation, PayloadRule, Transport

pytestmark = pytest.mark.needs_tshark

VALUES = {
    "RETH": {"va": 0x1122334455667788, "rkey": 0x99AABBCC, "length": 0x12345},
    "AETH": {"syndrome": 0x62, "msn": 0x010203},
    "DETH": {"qkey": 0x80010001, "source_qp": 0x040506},
    "ImmDt": {"immediate": 0x0708090A},
    "IETH": {"rkey": 0x0B0C0D0E},
    "AtomicETH": {"va": 0x1122334455667788, "rkey": 0x99AABBCC, "swap_or_add": 3, "compare": 4},
    "AtomicAckETH": {"original_data": 0x2122232425262728},
    "XRCETH": {"srqn": 0x111213},
    "RDETH": {"ee_context": 0x141516},
    "FETH": {"placement": 1},
    "CNPPad": {},
}
# tshark's name of each field that it has
TSHARK = {
    ("RETH", "va"): "infiniband.reth.va",
    ("RETH", "rkey"): "infiniband.reth.r_key",
    ("RETH", "length"): "infiniband.reth.dmalen",
    ("AETH", "syndrome"): "infiniband.aeth.syndrome",
    ("AETH", "msn"): "infiniband.aeth.msn",
    ("DETH", "qkey"): "infiniband.deth.q_key",
    ("DETH", "source_qp"): "infiniband.deth.srcqp",
    ("ImmDt", "immediate"): "infiniband.immdt",
    ("IETH", "rkey"): "infiniband.ieth",
    ("AtomicETH", "va"): "infiniband.reth.va",
    ("AtomicETH", "rkey"): "infiniband.reth.r_key",
    ("AtomicETH", "swap_or_add"): "infiniband.atomiceth.swapdt",
    ("AtomicETH", "compare"): "infiniband.atomiceth.cmpdt",
    ("AtomicAckETH", "original_data"): "infiniband.atomicacketh.origremdt",
}
UNKNOWN = (Operation.FLUSH, Operation.ATOMIC_WRITE, Operation.CNP)
KNOWN = [
    info
    for info in OPCODES.values()
    if info.operation not in UNKNOWN and info.transport not in (Transport.RD, Transport.XRC)
]
BTH_ALONE = [info for info in OPCODES.values() if info not in KNOWN]
FIELDS = [
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.invariant.crc",
    "_ws.malformed",
    *sorted(set(TSHARK.values())),
]


def tshark(packets: list[bytes], folder: Path, *options: str) -> list[dict[str, Any]]:
    """The fields of IP packets as tshark sees them, one dictionary a packet."""
    file = folder / "packets.pcap"
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101)  # raw IP
    for packet in packets:
        data += struct.pack("<IIII", 0, 0, len(packet), len(packet)) + packet
    file.write_bytes(data)
    run = subprocess.run(
        ["tshark", "-n", "-r", file, "-T", "json", "--disable-protocol", "rpcordma"]
        + [word for field in FIELDS for word in ("-e", field)]
        + list(options),
        capture_output=True,
        text=True,
        check=True,
    )
    return [frame["_source"]["layers"] for frame in json.loads(run.stdout)]


def number(values: list[str], base: int = 0) -> int:
    text = values[0]  # some fields come twice, the same
    return int(text, base) if text not in ("True", "False") else text == "True"


def bth_of(info: OpcodeInfo) -> dict[str, int]:
    return {
        "infiniband.bth.opcode": info.opcode,
        "infiniband.bth.se": 1,
        "infiniband.bth.m": 0,
        "infiniband.bth.padcnt": 0 if info.payload is PayloadRule.NONE else 3,
        "infiniband.bth.tver": 0,
        "infiniband.bth.p_key": 0x8001,
        "infiniband.bth.destqp": 0xABCDEF,
        "infiniband.bth.a": 1,
        "infiniband.bth.psn": 0x345678,
    }


def stack_of(info: OpcodeInfo, ip: Any) -> Any:
    stack = (
        ip
        / UDP()
        / layers.BTH(
            opcode=info.opcode, dest_qp=0xABCDEF, psn=0x345678, se=1, ackreq=1, pkey=0x8001
        )
    )
    for name in info.headers:
        stack /= getattr(layers, name)(**VALUES[name])
    return stack if info.payload is PayloadRule.NONE else stack / Raw(b"twenty-one bytes here")


@pytest.mark.parametrize("ip", [IP(), IPv6()], ids=["ipv4", "ipv6"])
def test_every_opcode(ip: Any, tmp_path: Path):
    packets = [raw(stack_of(info, ip)) for info in KNOWN]
    for info, packet, fields in zip(KNOWN, packets, tshark(packets, tmp_path), strict=True):
        assert "_ws.malformed" not in fields, info.name
        expected = bth_of(info) | {"infiniband.invariant.crc": int.from_bytes(packet[-4:], "big")}
        for name in info.headers:
            expected |= {TSHARK[name, field]: value for field, value in VALUES[name].items()}
        found = {
            field: number(values, 16 if field in ("infiniband.ieth", "infiniband.immdt") else 0)
            for field, values in fields.items()
        }
        assert found == expected, info.name


def test_the_bth_of_opcodes_that_tshark_does_not_follow(tmp_path: Path):
    packets = [raw(stack_of(info, IP())) for info in BTH_ALONE]
    for info, fields in zip(BTH_ALONE, tshark(packets, tmp_path), strict=True):
        expected = bth_of(info)
        assert {field: number(fields[field]) for field in expected} == expected, info.name


def test_names_agree(tmp_path: Path):
    """Info column against our names: the same words, spelling apart."""
    packets = [raw(stack_of(info, IP())) for info in KNOWN]
    file_fields = tshark(packets, tmp_path, "-e", "_ws.col.Info")
    spelling = {" WITH ": " ", "CMPSWAP": "COMPARE SWAP", "FETCHADD": "FETCH ADD"}
    for info, fields in zip(KNOWN, file_fields, strict=True):
        ours = info.name.upper()
        for plain, theirs in spelling.items():
            ours = ours.replace(plain, theirs)
        assert fields["_ws.col.Info"][0].split("QP=")[0].strip().upper() == ours


@pytest.mark.parametrize(
    ("syndrome", "part", "value"),
    [
        (0x62, "infiniband.aeth.syndrome.error_code", 2),
        (0x2E, "infiniband.aeth.syndrome.timer", 14),
        (0x0C, "infiniband.aeth.syndrome.credit_count", 12),
    ],
)
def test_syndrome_parts(syndrome: int, part: str, value: int, tmp_path: Path):
    packet = IP() / UDP() / layers.BTH(dest_qp=1) / layers.AETH(syndrome=syndrome)
    (fields,) = tshark([raw(packet)], tmp_path, "-e", part)
    assert number(fields[part]) == value
    assert number(fields["infiniband.aeth.syndrome"]) == syndrome


def test_a_cnp_is_found_by_its_becn_bit(tmp_path: Path):
    cnp = raw(IP() / UDP() / layers.BTH(dest_qp=0x118) / layers.CNPPad())
    plain = raw(IP() / UDP() / layers.BTH(opcode=Op.SEND_ONLY) / Raw(bytes(16)))
    (fields,) = tshark([plain, cnp, plain], tmp_path, "-Y", "infiniband.bth[4:1] == 40")
    assert number(fields["infiniband.bth.opcode"]) == CNP_OPCODE
