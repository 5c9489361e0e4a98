"""Test vectors: what is written builds the same bytes when it is read again."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.audit.dissect import Dissected, Dissector
from rocemu.audit.vectors import (
    HEADING,
    Vector,
    VectorError,
    VectorReader,
    VectorWriter,
    read_vectors,
)
from rocemu.capture import (
    CapturedPacket,
    Interface,
    LinkType,
    Network,
    build_frame,
    locate,
    open_capture,
)
from rocemu.wire import AETH, BTH, RETH, Flow, Op, Packet, build, seal
from tests.audit.made import frames, golden_captures
from tests.wire.examples import GOLDEN

RAW, ETHERNET = Interface(LinkType.RAW), Interface(LinkType.ETHERNET)


def dissected(data: list[bytes], interface: Interface = ETHERNET) -> list[Dissected]:
    return [Dissector().dissect(CapturedPacket(0, frame, len(frame), interface)) for frame in data]


def written(packets: list[Dissected]) -> str:
    file = io.StringIO()
    writer = VectorWriter(file, "a title")
    for packet in packets:
        writer.add(packet)
    return file.getvalue()


def octets(packet: Dissected) -> bytes:
    """IP header (or GRH) to ICRC, found without the table of fields."""
    found = locate(packet.captured.linktype, packet.captured.data)
    return packet.captured.data[found.network_at : found.end]


@pytest.mark.parametrize("path", golden_captures(), ids=lambda path: path.stem)
def test_every_kept_capture_is_built_again_from_its_fields(path: Path) -> None:
    with open_capture(path) as reader:
        packets = list(Dissector().dissect_all(reader))
    vectors = list(read_vectors(written(packets).splitlines()))
    roce = [packet for packet in packets if packet.is_roce]
    assert [vector.number for vector in vectors] == [packet.number for packet in roce]
    assert [vector.build() for vector in vectors] == [octets(packet) for packet in roce]


def test_everything_made_is_built_again_from_its_fields() -> None:
    packets = dissected(frames())
    vectors = list(read_vectors(written(packets).splitlines()))
    roce = [packet for packet in packets if packet.is_roce]
    assert [vector.build() for vector in vectors] == [octets(packet) for packet in roce]
    assert [vector.is_roce_v1 for vector in vectors] == [
        packet.network is Network.GRH for packet in roce
    ]


def test_the_golden_write_in_full() -> None:
    (line,) = written(dissected([GOLDEN["write"]], RAW)).splitlines()[3:]
    role, number, to, hexed, *fields = line.split()
    assert (role, number, to, hexed) == ("request", "1", "-", GOLDEN["write"].hex())
    values = dict(field.split("=") for field in fields)
    assert values == {
        "ip.dsfield": "0x00",
        "ip.len": "68",
        "ip.id": "0x0000",
        "ip.flags": "0x2",
        "ip.frag_offset": "0",
        "ip.ttl": "64",
        "ip.proto": "17",
        "ip.checksum": "0x26a7",
        "ip.src": "10.0.0.1",
        "ip.dst": "10.0.0.2",
        "udp.srcport": "49443",
        "udp.dstport": "4791",
        "udp.length": "48",
        "udp.checksum": "0x0000",
        "infiniband.bth.opcode": "10",
        "infiniband.bth.se": "0",
        "infiniband.bth.m": "0",
        "infiniband.bth.padcnt": "3",
        "infiniband.bth.tver": "0",
        "infiniband.bth.p_key": "65535",
        "infiniband.bth.fecn": "0",
        "infiniband.bth.becn": "0",
        "infiniband.bth.reserved6": "0",
        "infiniband.bth.destqp": "0x000011",
        "infiniband.bth.a": "1",
        "infiniband.bth.reserved7": "0",
        "infiniband.bth.psn": "1000",
        "infiniband.reth.va": "0x00007f0000001000",
        "infiniband.reth.r_key": "0x00123456",
        "infiniband.reth.dmalen": "5",
        "infiniband.payload": b"hello".hex(),
        "tail": "000000",
        "infiniband.invariant.crc": "0x6cf39ef5",
    }


def test_a_packet_is_built_from_fields_alone_and_each_field_counts() -> None:
    line = written(dissected([GOLDEN["write"]], RAW)).splitlines()[3]
    built = line.replace(GOLDEN["write"].hex(), "-")
    (vector,) = read_vectors([built])
    assert vector.octets is None
    assert vector.build() == GOLDEN["write"]
    for name, value in vector.fields.items():
        other = bytes((value[0] ^ 1, *value[1:])) if isinstance(value, bytes) else int(value) ^ 1
        changed = Vector("request", 1, (), None, {**vector.fields, name: other}, vector.tail)
        assert changed.build() != GOLDEN["write"], name


def test_ip_options_are_a_field() -> None:
    data = GOLDEN["ack"]
    longer = bytes((0x46,)) + data[1:20] + b"\1\1\1\0" + data[20:]
    longer = longer[:2] + len(longer).to_bytes(2, "big") + longer[4:]
    (line,) = written(dissected([longer], RAW)).splitlines()[3:]
    assert "ip.options=01010100" in line
    (vector,) = read_vectors([line])
    assert vector.build() == longer


def test_answers_name_their_requests() -> None:
    path = next(path for path in golden_captures() if path.stem == "ok_read")
    with open_capture(path) as reader:
        text = written(list(Dissector().dissect_all(reader)))
    roles = [(vector.role, vector.number, vector.to) for vector in read_vectors(text.splitlines())]
    assert roles == [
        ("request", 1, ()),
        ("answer", 2, (1,)),
        ("request", 3, ()),  # READ of three packets
        ("request", 4, ()),
        ("answer", 5, (3,)),
        ("answer", 6, (3,)),
        ("answer", 7, (3,)),
        ("answer", 8, (4,)),
    ]


def test_the_last_response_of_a_read_acknowledges_what_was_before() -> None:
    """The parts before it answer the READ alone."""

    def sealed(packet: Packet, source: str, destination: str) -> bytes:
        flow = Flow(source, destination, 50_000)
        return build_frame(flow, 0, seal(build(packet), flow, 0))

    left, right = "10.0.0.1", "10.0.0.2"
    dissector = Dissector()
    sent = [
        sealed(Packet(BTH(Op.SEND_ONLY, 2, 5), b"four"), left, right),
        sealed(Packet(BTH(Op.RDMA_READ_REQUEST, 2, 6), reth=RETH(0, 1, 300)), left, right),
        *(
            sealed(Packet(BTH(op, 3, psn), bytes(size), aeth=AETH(31, 1)), right, left)
            for op, psn, size in (
                (Op.RDMA_READ_RESPONSE_FIRST, 6, 256),
                (Op.RDMA_READ_RESPONSE_LAST, 7, 44),
            )
        ),
    ]
    packets = [dissector.dissect(CapturedPacket(0, frame, len(frame), ETHERNET)) for frame in sent]
    vectors = read_vectors(written(packets).splitlines())
    assert [vector.to for vector in vectors] == [(), (), (2,), (1, 2)]


@pytest.mark.parametrize(("stem", "most"), [("ucmatose", 1), ("ok_send", 3)])
def test_an_acknowledge_answers_all_that_wait_and_the_cm_is_other(stem: str, most: int) -> None:
    path = next(path for path in golden_captures() if path.stem == stem)
    with open_capture(path) as reader:
        packets = list(Dissector().dissect_all(reader))
    vectors = list(read_vectors(written(packets).splitlines()))
    by_number = {packet.number: packet for packet in packets}
    answered = [number for vector in vectors for number in vector.to]
    requests = [vector.number for vector in vectors if vector.role == "request"]
    assert sorted(answered) == requests
    assert max(len(vector.to) for vector in vectors) == most
    for vector in vectors:
        packet = by_number[vector.number].packet
        assert packet is not None
        assert (vector.role == "other") == (packet.deth is not None)


def test_packets_that_were_cut_are_left_out_with_a_count() -> None:
    file = io.StringIO()
    writer = VectorWriter(file)
    for size in (47, 45, 41, 39):
        packet = CapturedPacket(0, GOLDEN["ack"][:size], len(GOLDEN["ack"]), RAW)
        writer.add(Dissector().dissect(packet))
    assert (writer.written, writer.left_out) == (0, 3)  # of the last not even a BTH is left
    assert file.getvalue().splitlines()[0] == HEADING


def test_vectors_are_read_as_a_capture() -> None:
    made = dissected([*frames()[:6], GOLDEN["nak"]])
    made[-1] = dissected([GOLDEN["nak"]], RAW)[0]
    reader = VectorReader(io.BytesIO(written(made).encode()))
    again = [Dissector().dissect(packet) for packet in reader]
    assert [octets(packet) for packet in again] == [octets(packet) for packet in made]
    assert {packet.icrc for packet in again} == {"right"}


BROKEN = {
    "request 1 -": "ROLE NUMBER TO HEX NAME=VALUE ... is expected",
    "request x - - ip.ttl=1": "invalid literal for int",
    "request 1 - zz ip.ttl=1": "non-hexadecimal number",
    "request 1 - - ip.ttl": "'ip.ttl' is no field with its value",
    "request 1 - - ip.tll=1": "'ip.tll=1' is no field with its value",
    "request 1 - - ip.ttl=a": "ip.ttl=a: no number",
    "request 1 - - ip.src=10.0.0.0/8": "ip.src=10.0.0.0/8: no IPv4 address",
    "request 1 - 45 ip.ttl=1": "the fields do not give the bytes in HEX",
    "request 1 - 45 ip.ttl=256": "ip.ttl=256 does not fit into 8 bits",
    "request 1 - 45 infiniband.bth.psn=-1": "infiniband.bth.psn=-1 does not fit into 24 bits",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_line_that_is_no_vector_is_a_sentence_with_its_number(line: str) -> None:
    with pytest.raises(VectorError) as refused:
        list(read_vectors([HEADING, "", line]))
    assert str(refused.value).startswith(f"line 3: {BROKEN[line]}")
    reader = VectorReader(io.BytesIO(f"{HEADING}\n\n{line}\n".encode()))
    assert list(reader) == []
    assert reader.damage == f"after packet 0: {refused.value}"


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    reader = VectorReader(io.BytesIO(f"{HEADING}\n{text}".encode()))
    assert len(list(reader)) == reader.packets
