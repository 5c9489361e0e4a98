"""The MAD layers against the codec, both ways, and against the kernel's packets."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Padding, Raw
from scapy.utils import rdpcap

from layers.mad import CM_DREP, CM_DREQ, CM_MRA, CM_REJ, CM_REP, CM_REQ, CM_RTU, IPCM, MAD
from layers.roce import BTH, DETH
from rocemu.wire import (
    CM_MESSAGES,
    GSI_QKEY,
    CmReq,
    IpCmHeader,
    MadHeader,
    build_mad,
    gid_of,
    layout,
    parse_mad,
    service_id,
)

CAPTURES = Path(__file__).parents[2] / "pcaps" / "soft-roce"
LAYERS = [CM_REQ, CM_MRA, CM_REJ, CM_REP, CM_RTU, CM_DREQ, CM_DREP]
PAIRS = list(zip(CM_MESSAGES.values(), LAYERS, strict=True))

bodies = st.binary(min_size=232, max_size=232)


def rebuilt(packet: Any) -> bytes:
    """Built from the fields, not from the bytes that were dissected."""
    copy = packet.copy()
    copy.clear_cache()
    return bytes(copy)


@pytest.mark.parametrize(("name", "port"), [("rping", 7174), ("ucmatose", 7471)])
def test_the_kernels_packets_are_dissected_and_rebuilt(name: str, port: int) -> None:
    frames = [bytes(frame) for frame in rdpcap(str(CAPTURES / f"{name}.pcap"))]
    packets = [frame for frame in map(Ether, frames) if BTH in frame and frame[BTH].dest_qp == 1]
    kinds = [type(packet[MAD].payload) for packet in packets]
    assert kinds == [CM_REQ, CM_REP, CM_RTU, CM_DREQ, CM_DREP]
    for packet in packets:
        assert rebuilt(packet) == packet.original
        assert packet[MAD].sprintf("%attribute_id%") == type(packet[MAD].payload).__name__[3:]
    others = [frame for frame in map(Ether, frames) if BTH in frame and frame[BTH].dest_qp != 1]
    assert others
    assert not any(MAD in frame for frame in others)
    request = packets[0]
    assert request[CM_REQ].primary_local_gid == "::ffff:10.77.0.2"
    assert (request[IPCM].source, request[IPCM].destination) == ("::10.77.0.2", "::10.77.0.3")
    assert request[CM_REQ].service_id == service_id(port)
    assert request[CM_REQ].sprintf("%path_mtu% %transport_type%") == "4096 RC"


def fields_agree(message: Any, layer: Any, skip: str = "private_data") -> None:
    for row in layout(type(message)):
        if row.name == skip:
            continue
        ours = getattr(message, row.name)
        theirs = layer.getfieldval(row.name)
        if row.kind is bytes and row.bits == 128:
            theirs = layer.get_field(row.name).i2m(layer, theirs)
        assert theirs == ours, row.name


@pytest.mark.parametrize(("cls", "layer"), PAIRS)
@given(transaction=st.integers(0, (1 << 64) - 1), body=bodies)
def test_scapy_reads_and_rebuilds_what_the_codec_writes(
    cls: Any, layer: Any, transaction: int, body: bytes
) -> None:
    message = cls.unpack(body)
    message.transaction_id = transaction
    mad = build_mad(message)
    dissected = MAD(mad)
    assert type(dissected.payload) is layer
    assert dissected.transaction_id == transaction
    fields_agree(message, dissected.payload)
    assert bytes(dissected.payload.payload) == message.private_data
    assert rebuilt(dissected) == mad


@pytest.mark.parametrize(("cls", "layer"), PAIRS)
@given(data=st.data())
def test_the_codec_reads_what_scapy_builds(cls: Any, layer: Any, data: st.DataObject) -> None:
    values: dict[str, Any] = {}
    for row in layout(cls):
        if row.kind is bytes:
            values[row.name] = data.draw(st.binary(min_size=row.bits // 8, max_size=row.bits // 8))
        else:
            values[row.name] = row.kind(data.draw(st.integers(0, (1 << row.bits) - 1)))
    message = cls(**values)
    private = values.pop("private_data")
    shown = {
        name: layer().get_field(name).m2i(None, value) if isinstance(value, bytes) else int(value)
        for name, value in values.items()
    }
    assert parse_mad(bytes(MAD() / layer(**shown) / Raw(private))) == message


@pytest.mark.parametrize(("cls", "layer"), PAIRS)
@given(body=bodies)
def test_scapy_keeps_reserved_bits_too(cls: Any, layer: Any, body: bytes) -> None:
    mad = MadHeader(attribute_id=cls.ATTRIBUTE).pack() + body
    dissected = MAD(mad)
    assert type(dissected.payload) is layer
    assert rebuilt(dissected) == mad


@pytest.mark.parametrize(("cls", "layer"), PAIRS)
def test_defaults_are_the_codecs(cls: Any, layer: Any) -> None:
    assert bytes(MAD() / layer()) == build_mad(cls())


@given(source=st.ip_addresses(v=4), destination=st.ip_addresses(v=4), port=st.integers(0, 65535))
def test_ipv4_text_is_taken_in_gids_and_in_the_ip_header(
    source: Any, destination: Any, port: int
) -> None:
    ours = CmReq(
        service_id=service_id(7174),
        primary_local_gid=gid_of(str(source)),
        primary_remote_gid=gid_of(str(destination)),
        private_data=IpCmHeader.between(str(source), port, str(destination)).pack() + b"told",
    )
    theirs = (
        MAD()
        / CM_REQ(
            service_id=ours.service_id,
            primary_local_gid=str(source),
            primary_remote_gid=str(destination),
        )
        / IPCM(source=str(source), source_port=port, destination=str(destination))
        / Raw(b"told")
    )
    assert bytes(theirs) == build_mad(ours)


def test_private_data_of_another_kind_of_service_is_raw() -> None:
    mad = build_mad(CmReq(service_id=0x1000000001061C06, private_data=bytes(range(92))))
    dissected = MAD(mad)
    assert IPCM not in dissected
    assert dissected[Raw].load == bytes(range(92))


def test_what_follows_the_256_bytes_is_padding() -> None:
    dissected = MAD(build_mad(CmReq(service_id=service_id(1))) + b"more")
    assert dissected[Padding].load == b"more"
    assert len(dissected[Raw].load) == 56


@pytest.mark.parametrize("network", [IP(dst="192.0.2.2"), IPv6(dst="2001:db8::2")])
def test_behind_the_deth_of_a_send_only_to_qp_1(network: Any) -> None:
    packet = network / UDP() / BTH(dest_qp=1) / DETH() / MAD() / CM_RTU(local_comm_id=7)
    read = type(network)(bytes(packet))
    assert (read[DETH].qkey, read[DETH].source_qp) == (GSI_QKEY, 1)
    assert read[UDP].len == 8 + 12 + 8 + 256 + 4
    assert read[CM_RTU].local_comm_id == 7


@pytest.mark.parametrize(
    "change",
    [{"dest_qp": 2}, {"opcode": 0x65}],  # another QP; a SEND Only with Immediate
)
def test_no_mad_anywhere_else(change: dict[str, int]) -> None:
    packet = IP() / UDP() / BTH(**{"dest_qp": 1, "opcode": 0x64, **change}) / DETH() / MAD()
    read = IP(bytes(packet))
    assert DETH in read
    assert MAD not in read
