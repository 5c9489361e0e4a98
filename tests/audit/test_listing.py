"""A packet as a line, a tree, hex and JSON; counts by conversation."""

import json
import re
from pathlib import Path

import pytest

from rocemu.audit.dissect import Dissected, Dissector, Icrc
from rocemu.audit.field_table import FIELDS, FIELDS_OF, TITLES
from rocemu.audit.listing import hex_lines, info, line, record, tree_lines
from rocemu.audit.tally import Tally
from rocemu.capture import CapturedPacket, Interface, LinkType, open_capture
from tests.audit.made import frames, golden_captures
from tests.wire.examples import CONNECTX_CNP, GOLDEN

RAW = Interface(LinkType.RAW)


def dissect(data: bytes, whole: int = 0) -> Dissected:
    return Dissector().dissect(CapturedPacket(5, data, whole or len(data), RAW))


def kept(stem: str) -> list[Dissected]:
    (path,) = (path for path in golden_captures() if path.stem == stem)
    with open_capture(path) as reader:
        return list(Dissector().dissect_all(reader))


LINES = {
    "write": "RC RDMA WRITE Only QP=0x11 PSN=1000 A VA=0x7f0000001000 R_Key=0x00123456 Len=5 (5 B)",
    "ack": "RC Acknowledge QP=0x12 PSN=1000 ACK MSN=1",
    "nak": "RC Acknowledge QP=0x12 PSN=1000 NAK Remote Access Error MSN=0",
    "read": "RC RDMA READ Request QP=0x11 PSN=1001 VA=0x7f0000001000 R_Key=0x00123456 Len=4096",
    "fetch_add": "RC FetchAdd QP=0x11 PSN=1002 VA=0x7f0000001008 R_Key=0x00123456 SwapAdd=1 Cmp=0",
    "atomic_ack": "RC ATOMIC Acknowledge QP=0x12 PSN=1002 ACK MSN=2 Original=41",
}


@pytest.mark.parametrize("name", LINES)
def test_golden_packets_in_a_line(name: str) -> None:
    said = info(dissect(GOLDEN[name]))
    words, _, verdict = said.partition("  ")
    assert words.replace(" A ", " ") == LINES[name].replace(" A ", " ")
    assert verdict == "[ICRC right]"


def test_a_real_adapters_cnp() -> None:
    assert info(dissect(CONNECTX_CNP)) == "CNP QP=0x118 PSN=0 BECN  [ICRC right]"


def test_number_time_addresses_protocol_and_length_come_first() -> None:
    lines = [line(packet) for packet in kept("write_badrkey")]
    assert lines[3] == (
        "    4     0.005521       10.77.0.3 → 10.77.0.2       RoCEv2 62 RC Acknowledge QP=0x12 "
        "PSN=257 NAK Remote Access Error MSN=1  [ICRC right]"
    )


def test_cm_messages_in_a_line() -> None:
    said = [info(packet).partition("  ")[0] for packet in kept("rping")]
    assert said[:3] == [
        "CM REQ port 7174 QPN=0x1e PSN=6720780",
        "CM REP QPN=0x1e PSN=2129405",
        "CM RTU",
    ]
    assert said[-2:] == ["CM DREQ", "CM DREP"]


def test_a_wrong_icrc_names_both_values() -> None:
    spoilt = GOLDEN["ack"][:-1] + b"\0"
    assert info(dissect(spoilt)).endswith("[ICRC wrong: 0x84607200, must be 0x84607287]")


@pytest.mark.parametrize("size", range(len(GOLDEN["write"])))
def test_what_the_snap_length_left_is_shown(size: int) -> None:
    """Headers that are whole are told, the ICRC is not judged, and nothing is made up."""
    packet = dissect(GOLDEN["write"][:size], whole=len(GOLDEN["write"]))
    said = info(packet)
    whole = dissect(GOLDEN["write"])
    for key, span in packet.layers.items():
        if key not in ("frame", "infiniband", "payload"):
            assert whole.layers[key] == span
            assert span[1] <= size
    if not packet.is_roce:
        assert size < 28
        assert said == ""
        return
    assert packet.icrc is Icrc.UNKNOWN
    assert f"[cut: {len(GOLDEN['write']) - size} bytes were not captured]" in said
    assert ("RC RDMA WRITE Only QP=0x11" in said) == (size >= 40)
    assert ("VA=" in said) == (size >= 56)
    record(packet)
    assert list(tree_lines(packet))


def test_roce_by_port_only() -> None:
    data = bytearray(GOLDEN["ack"][:31])
    data[2:4], data[24:26] = (31).to_bytes(2, "big"), (11).to_bytes(2, "big")
    packet = dissect(bytes(data))
    assert info(packet) == "[ICRC unknown]  [RoCE by port only: 3 bytes, no room for a BTH]"
    assert (packet.placed, packet.bth) == (None, None)


def test_the_tree_has_every_field_once_in_wire_order() -> None:
    for frame in frames():
        packet = Dissector().dissect(CapturedPacket(5, frame, len(frame), Interface()))
        lines = list(tree_lines(packet))
        titles = [text for text in lines if not text.startswith(" ")]
        assert titles == list(dict.fromkeys(titles))
        order = [title for key, title in TITLES.items() if title in titles]
        assert titles == order
        shown = [text.strip() for text in lines if text.startswith(" ")]
        for layer in ("bth", "reth", "aeth", "deth", "ip", "udp"):
            if layer in packet.layers:
                for field in FIELDS_OF[layer]:
                    if field.bits:
                        assert any(text.startswith(f"{field.label}: ") for text in shown), field


def test_the_tree_of_a_nak() -> None:
    lines = list(tree_lines(dissect(GOLDEN["nak"])))
    at = lines.index("AETH - ACK Extended Transport Header")
    assert lines[at : at + 6] == [
        "AETH - ACK Extended Transport Header",
        "    Syndrome: 98 (NAK Remote Access Error)",
        "    Reserved: 0",
        "    OpCode: 3 (NAK)",
        "    Error Code: 2",
        "    Message Sequence Number: 0",
    ]
    assert "    Opcode: 17 (RC Acknowledge)" in lines
    assert lines[-4:-2] == ["    ICRC: right", "    ICRC as it must be: 0x53282069"]


def test_hex_is_read_back_by_offset() -> None:
    data = bytes(range(256)) * 2 + b"tail"
    lines = list(hex_lines(data))
    assert [int(text[:4], 16) for text in lines] == list(range(0, len(data), 16))
    assert b"".join(bytes.fromhex(text[6:53]) for text in lines) == data
    assert lines[2].endswith(" !\"#$%&'()*+,-./")
    assert lines[-1] == f"0200  74 61 69 6c{' ' * 39}tail"


def test_json_has_numbers_as_numbers_and_survives_a_round_trip() -> None:
    said = json.loads(json.dumps(record(dissect(GOLDEN["write"]))))
    assert (said["event"], said["number"], said["opcode"]) == ("packet", 1, "RC RDMA WRITE Only")
    assert (said["qp_num"], said["psn"], said["icrc"]) == (0x11, 1000, "right")
    fields = said["fields"]
    assert fields["infiniband.reth.va"] == 0x7F0000001000
    assert fields["infiniband.bth.a"] is True
    assert fields["infiniband.payload"] == b"hello".hex()
    assert fields["ip.src"] == "10.0.0.1"
    assert set(fields) <= set(FIELDS)


def test_json_of_other_frames_says_what_they_are() -> None:
    said = record(Dissector().dissect(CapturedPacket(0, frames()[-2], 42, Interface())))
    assert (said["source"], said["network"]) == (None, "neither IP nor RoCE")
    assert "icrc" not in said


def test_tally_of_a_refused_write() -> None:
    tally = Tally()
    for packet in kept("write_badrkey"):
        tally.add(packet)
    (conversation,) = tally.conversations()
    assert conversation.record() == {
        "event": "conversation",
        "number": 0,
        "ends": [
            {"address": "10.77.0.2", "qp_num": 0x12},
            {"address": "10.77.0.3", "qp_num": 0x12},
        ],
        "transport": "RC",
        "pairing": "behaviour",
        "start": 0.0,
        "duration": 0.005607,
        "packets": [3, 2],
        "payload": [80, 0],
        "requests": [3, 0],
        "again": [0, 0],
        "icrc_wrong": [0, 0],
        "problems": [0, 0],
        "naks": {"NAK Remote Access Error": 1},
    }


@pytest.mark.parametrize("path", golden_captures(), ids=lambda path: path.stem)
def test_tallies_add_up(path: Path) -> None:
    tally, packets = Tally(), 0
    with open_capture(path) as reader:
        for packet in Dissector().dissect_all(reader):
            tally.add(packet)
            packets += packet.bth is not None
    conversations = tally.conversations()
    assert sum(one.total("packets") for one in conversations) == packets
    for one in conversations:
        assert one.total("packets") == one.conversation.packets
        assert re.fullmatch(r"(CM|CNP|RC|UC|UD|XRC|RD|\?)(\+(RC|UC|UD))?", one.transports)


def test_nothing_is_made_up_of_a_connection_request_that_was_cut() -> None:
    request = kept("rping")[0].captured
    for size in range(54, len(request.data) - 4):
        cut = CapturedPacket(0, request.data[:size], len(request.data), request.interface)
        packet = Dissector().dissect(cut)
        assert packet.placed is not None
        assert packet.placed.cm is None
        assert packet.placed.conversation.req is None
        assert not [key for key in packet.layers if key.startswith("cm.")]


def test_control_characters_of_a_file_do_not_reach_the_terminal() -> None:
    comment = ("\x1b[31mred\x07 ä\n",)
    packet = Dissector().dissect(CapturedPacket(0, GOLDEN["ack"], 48, RAW, comment))
    assert r"    Comment: \x1b[31mred\x07 ä\n" in list(tree_lines(packet))
