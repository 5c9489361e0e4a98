"""The opcode table against the specification's, written down here a second time."""

import pytest

from rocemu.wire import CNP_OPCODE, HEADER_SIZES, OPCODES, Op, PayloadRule, Transport, opcode_name

NONE, FULL, SOME, ANY, EIGHT = PayloadRule

# Bits 4:0 -> (headers, payload, transports) of RC and UC.
TABLE = {
    0x00: ("", FULL, "RC UC RD XRC"),
    0x01: ("", FULL, "RC UC RD XRC"),
    0x02: ("", SOME, "RC UC RD XRC"),
    0x03: ("ImmDt", SOME, "RC UC RD XRC"),
    0x04: ("", ANY, "RC UC RD UD XRC"),
    0x05: ("ImmDt", ANY, "RC UC RD UD XRC"),
    0x06: ("RETH", FULL, "RC UC RD XRC"),
    0x07: ("", FULL, "RC UC RD XRC"),
    0x08: ("", SOME, "RC UC RD XRC"),
    0x09: ("ImmDt", SOME, "RC UC RD XRC"),
    0x0A: ("RETH", ANY, "RC UC RD XRC"),
    0x0B: ("RETH ImmDt", ANY, "RC UC RD XRC"),
    0x0C: ("RETH", NONE, "RC RD XRC"),
    0x0D: ("AETH", FULL, "RC RD XRC"),
    0x0E: ("", FULL, "RC RD XRC"),
    0x0F: ("AETH", SOME, "RC RD XRC"),
    0x10: ("AETH", ANY, "RC RD XRC"),
    0x11: ("AETH", NONE, "RC RD XRC"),
    0x12: ("AETH AtomicAckETH", NONE, "RC RD XRC"),
    0x13: ("AtomicETH", NONE, "RC RD XRC"),
    0x14: ("AtomicETH", NONE, "RC RD XRC"),
    0x15: ("", NONE, "RD"),
    0x16: ("IETH", SOME, "RC XRC"),
    0x17: ("IETH", ANY, "RC XRC"),
    0x1C: ("FETH RETH", NONE, "RC RD XRC"),
    0x1D: ("RETH", EIGHT, "RC"),
}
TRANSPORTS = {"RC": 0x00, "UC": 0x20, "RD": 0x40, "UD": 0x60, "XRC": 0xA0}
RESPONSES = range(0x0D, 0x13)


def expected() -> dict[int, tuple[list[str], PayloadRule]]:
    rows = {0x81: (["CNPPad"], NONE)}
    for op, (headers, payload, transports) in TABLE.items():
        for transport in transports.split():
            prefix: list[str] = []
            if transport == "RD":
                prefix = ["RDETH"] if op in RESPONSES or op == 0x1C else ["RDETH", "DETH"]
            elif transport == "UD":
                prefix = ["DETH"]
            elif transport == "XRC" and op not in RESPONSES:
                prefix = ["XRCETH"]
            rows[TRANSPORTS[transport] + op] = (prefix + headers.split(), payload)
    return rows


def test_every_opcode_has_the_headers_and_payload_of_the_specification():
    found = {code: (list(info.headers), info.payload) for code, info in OPCODES.items()}
    assert found == expected()


def test_header_sizes():
    assert HEADER_SIZES == {
        "RETH": 16,
        "AETH": 4,
        "DETH": 8,
        "ImmDt": 4,
        "IETH": 4,
        "AtomicETH": 28,
        "AtomicAckETH": 8,
        "XRCETH": 4,
        "RDETH": 4,
        "FETH": 4,
        "CNPPad": 16,
    }


@pytest.mark.parametrize(
    ("opcode", "header_bytes"),
    [(0x04, 0), (0x0B, 20), (0x12, 12), (0x13, 28), (0x1C, 20), (0x4B, 32), (0x65, 12), (0xB3, 32)],
)
def test_header_bytes_are_the_sum_of_the_chain(opcode: int, header_bytes: int):
    assert OPCODES[opcode].header_bytes == header_bytes


def test_names_for_people():
    assert opcode_name(0x0A) == "RC RDMA WRITE Only"
    assert opcode_name(0x65) == "UD SEND Only with Immediate"
    assert opcode_name(CNP_OPCODE) == "CNP"
    assert opcode_name(0x18) == "reserved 0x18"
    assert len({info.name for info in OPCODES.values()}) == len(OPCODES)


def test_infinibands_own_cnp_and_other_reserved_opcodes_are_not_in_the_table():
    assert not {0x80, 0x15, 0x18, 0x1B, 0x1E, 0x1F, 0x36, 0x37, 0x2C, 0x64 + 2, 0xFF} & set(OPCODES)


def test_what_a_row_says_of_its_message():
    first, last, only = OPCODES[0x06], OPCODES[0x09], OPCODES[0xB7]
    assert (first.starts_message, first.ends_message) == (True, False)
    assert (last.starts_message, last.ends_message) == (False, True)
    assert (only.starts_message, only.ends_message) == (True, True)
    assert (last.has_immediate, last.has_invalidate) == (True, False)
    assert (only.has_immediate, only.has_invalidate) == (False, True)
    assert only.transport is Transport.XRC


def test_requests_and_responses():
    responses = {code for code, info in OPCODES.items() if not info.is_request}
    prefixes = (0x00, 0x40, 0xA0)
    assert responses == {prefix + op for prefix in prefixes for op in RESPONSES} | {0x81}


def test_an_rc_opcode_equals_its_operation_bits():
    assert all(OPCODES[Transport.RC | op].opcode == op for op in Op if op is not Op.RESYNC)
