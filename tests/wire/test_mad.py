"""CM MADs: the kernel's own bytes, tshark's reading of ours, and what no bytes may do."""

import random
import struct
import subprocess
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.wire import (
    BTH,
    CM_MESSAGES,
    DETH,
    GSI_QKEY,
    MAD_SIZE,
    BitFields,
    CmAttribute,
    CmDrep,
    CmDreq,
    CmMessage,
    CmMra,
    CmRej,
    CmRep,
    CmReq,
    CmRtu,
    Flow,
    IpCmHeader,
    MadHeader,
    Op,
    Packet,
    Transport,
    WireError,
    build,
    build_mad,
    gid_of,
    layout,
    parse,
    parse_mad,
    seal,
    service_id,
    service_port,
)

CAPTURES = Path(__file__).parents[2] / "pcaps" / "soft-roce"
MESSAGES = list(CM_MESSAGES.values())
BLOCKS = [MadHeader, IpCmHeader, *MESSAGES]


def kernel_mads(name: str) -> list[bytes]:
    """The CM MADs of a capture: classic pcap, Ethernet, IPv4, UDP 4791, BTH.DestQP 1."""
    data = (CAPTURES / f"{name}.pcap").read_bytes()
    assert data[:4] == bytes.fromhex("d4c3b2a1")
    mads, offset = [], 24
    while offset < len(data):
        (length,) = struct.unpack_from("<I", data, offset + 8)
        frame = data[offset + 16 : offset + 16 + length]
        offset += 16 + length
        if frame[12:14] == b"\x08\0" and frame[23] == 17 and frame[36:38] == b"\x12\xb7":
            packet = parse(frame[42:-4])
            if packet.bth.dest_qp == 1:
                mads.append(bytes(packet.payload))
    return mads


def messages() -> st.SearchStrategy[CmMessage]:
    def instances(cls: type[BitFields]) -> st.SearchStrategy[BitFields]:
        values: dict[str, st.SearchStrategy[object]] = {}
        for row in layout(cls):
            if row.kind is bytes:
                values[row.name] = st.binary(min_size=row.bits // 8, max_size=row.bits // 8)
            elif row.kind is bool:
                values[row.name] = st.booleans()
            else:
                values[row.name] = st.integers(0, (1 << row.bits) - 1)
        return st.builds(cls, transaction_id=st.integers(0, (1 << 64) - 1), **values)

    return st.one_of([instances(cls) for cls in MESSAGES])


@pytest.mark.parametrize("name", ["rping", "ucmatose"])
def test_the_kernels_mads_are_rebuilt_byte_for_byte(name: str) -> None:
    mads = kernel_mads(name)
    kinds = [type(parse_mad(mad)) for mad in mads]
    assert kinds == [CmReq, CmRep, CmRtu, CmDreq, CmDrep]
    assert [build_mad(parse_mad(mad)) for mad in mads] == mads


def test_the_fields_of_the_kernels_rping_connection() -> None:
    """Values read by hand out of the capture's hex (see its README)."""
    req, rep, rtu, dreq, drep = (parse_mad(mad) for mad in kernel_mads("rping"))
    assert isinstance(req, CmReq)
    assert req.transaction_id == 0x24B3350CA
    assert (req.local_comm_id, req.service_id) == (0xCA50334B, 0x1061C06)
    assert (req.local_ca_guid, req.local_qkey) == (0x505400FFFE770002, 0)
    assert (req.local_qpn, req.starting_psn) == (0x1E, 0x668D0C)
    assert (req.responder_resources, req.initiator_depth) == (1, 1)
    assert (req.remote_cm_response_timeout, req.local_cm_response_timeout) == (20, 20)
    assert (req.transport_type, req.end_to_end_flow_control) == (0, False)
    assert (req.retry_count, req.rnr_retry_count, req.max_cm_retries) == (7, 7, 15)
    assert (req.partition_key, req.path_mtu, req.srq) == (0xFFFF, 5, False)
    assert (req.primary_local_lid, req.primary_remote_lid) == (0xFFFF, 0xFFFF)
    assert req.primary_local_gid == gid_of("10.77.0.2")
    assert req.primary_remote_gid == gid_of("10.77.0.3")
    assert (req.primary_flow_label, req.primary_packet_rate) == (0x1F750, 0)
    assert (req.primary_hop_limit, req.primary_local_ack_timeout) == (64, 17)
    ip = IpCmHeader.unpack(req.private_data)
    assert (ip.cma_version, ip.ip_version, ip.source_port) == (0, 4, 0x9376)
    assert (ip.source_address, ip.destination_address) == ("10.77.0.2", "10.77.0.3")

    assert isinstance(rep, CmRep)
    assert (rep.local_comm_id, rep.remote_comm_id) == (0x088DA52F, 0xCA50334B)
    assert (rep.local_qpn, rep.starting_psn) == (0x1E, 0x207DFD)
    assert (rep.responder_resources, rep.initiator_depth) == (1, 1)
    assert (rep.target_ack_delay, rep.failover_accepted) == (0x78 >> 3, 0)
    assert (rep.rnr_retry_count, rep.srq) == (7, False)
    assert rep.local_ca_guid == 0x505400FFFE770003

    assert isinstance(rtu, CmRtu)
    assert (rtu.local_comm_id, rtu.remote_comm_id) == (0xCA50334B, 0x088DA52F)
    assert isinstance(dreq, CmDreq)
    assert (dreq.local_comm_id, dreq.remote_comm_id) == (0xCA50334B, 0x088DA52F)
    assert dreq.remote_qpn == 0x1E
    assert isinstance(drep, CmDrep)
    assert (drep.local_comm_id, drep.remote_comm_id) == (0x088DA52F, 0xCA50334B)
    assert {m.transaction_id for m in (rep, rtu, dreq, drep)} == {req.transaction_id}


@pytest.mark.parametrize("cls", BLOCKS)
def test_no_two_fields_share_a_bit_and_all_are_inside(cls: type[BitFields]) -> None:
    end = 0
    for row in layout(cls):
        assert row.start >= end
        assert row.kind is not bytes or row.start % 8 == row.bits % 8 == 0
        end = row.start + row.bits
    assert end == cls.SIZE * 8


@given(messages())
def test_what_is_built_is_read_back(message: CmMessage) -> None:
    mad = build_mad(message)
    assert len(mad) == MAD_SIZE
    assert parse_mad(mad) == message


@given(st.binary(max_size=300) | st.binary(min_size=256, max_size=256))
def test_bytes_that_are_no_mad_raise_nothing_but_wire_errors(data: bytes) -> None:
    reason = "none"
    try:
        parse_mad(data)
    except WireError as error:
        reason = error.reason
    assert reason in ("none", "mad")


@given(st.sampled_from(sorted(CM_MESSAGES)), st.binary(min_size=232, max_size=232))
def test_any_body_can_be_read_and_loses_only_reserved_bits(attribute: int, body: bytes) -> None:
    message = parse_mad(MadHeader(attribute_id=attribute).pack() + body)
    covered = 0
    for row in layout(type(message)):
        covered |= (1 << row.bits) - 1 << 232 * 8 - row.start - row.bits
    expected = (int.from_bytes(body, "big") & covered).to_bytes(232, "big")
    assert message.pack() == expected


@pytest.mark.parametrize(
    ("offset", "value", "told"),
    [
        (0, 2, "base_version 2"),
        (1, 4, "mgmt_class 4"),
        (2, 1, "class_version 1"),
        (3, 0x83, "method 131"),
        (17, 0x20, "0x0020"),
        (17, CmAttribute.LAP, "0x0019"),
    ],
)
def test_a_mad_of_another_kind_is_refused_with_what_it_is(
    offset: int, value: int, told: str
) -> None:
    mad = bytearray(build_mad(CmRtu()))
    mad[offset] = value
    with pytest.raises(WireError, match=told) as caught:
        parse_mad(mad)
    assert caught.value.reason == "mad"


@pytest.mark.parametrize("size", [0, 23, 255, 257])
def test_a_mad_has_256_bytes(size: int) -> None:
    with pytest.raises(WireError, match=f"{size} bytes"):
        parse_mad((build_mad(CmRtu()) + bytes(1))[:size])


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(WireError, match="retry_count: 8 does not fit into 3 bits"):
        build_mad(CmReq(retry_count=8))
    with pytest.raises(WireError, match="private_data: 197 bytes, at most 196"):
        build_mad(CmRep(private_data=bytes(197)))
    with pytest.raises(WireError, match="35 bytes, IpCmHeader has 36"):
        IpCmHeader.unpack(bytes(35))


def test_service_ids_of_ports() -> None:
    assert service_id(7174) == 0x0000000001061C06  # rping's, as the kernel sent it
    assert service_port(0x01061C06) == 7174
    assert service_port(0x01111C06) is None  # RDMA_PS_UDP
    assert service_port(0x1000000001061C06) is None


def test_gids_of_addresses() -> None:
    assert gid_of("10.77.0.2").hex() == "00000000000000000000ffff0a4d0002"  # the kernel's
    assert gid_of("2001:db8::1").hex() == "20010db8000000000000000000000001"


def test_the_ip_header_of_both_ip_versions() -> None:
    # The kernel's bytes (rping.pcap).
    v4 = IpCmHeader.between("10.77.0.2", 0x9376, "10.77.0.3")
    assert v4.pack().hex() == "00409376" + "00" * 12 + "0a4d0002" + "00" * 12 + "0a4d0003"
    v6 = IpCmHeader.between("2001:db8::1", 1, "2001:db8::2")
    assert v6.pack().hex() == "00600001" + (
        "20010db8" + "00" * 11 + "01" + "20010db8" + "00" * 11 + "02"
    )
    assert (v6.source_address, v6.destination_address) == ("2001:db8::1", "2001:db8::2")
    with pytest.raises(ValueError, match="not of one IP version"):
        IpCmHeader.between("10.77.0.2", 1, "::1")


# Our field -> tshark's.  tshark 4.0.17 reads the flow label and the packet rate 8 bits too early
# (its REQ shows label 0x001f7 and rate 0x1f for the kernel's bytes 1f 75 00 00, whose first 20
# bits are the label), so those are not asked for; MRA it does not dissect at all.
_PATH = {
    "local_lid": "locallid",
    "remote_lid": "remotelid",
    "traffic_class": "tfcclass",
    "hop_limit": "hoplim",
    "sl": "sl",
    "subnet_local": "subnetlocal",
    "local_ack_timeout": "localacktout",
}
_IDS = {"local_comm_id": "localcommid", "remote_comm_id": "remotecommid"}
TSHARK: dict[type[CmMessage], dict[str, str]] = {
    CmReq: {
        "local_comm_id": "req",
        "service_id": "req.serviceid",
        "local_ca_guid": "req.localcaguid",
        "local_qkey": "req.localqkey",
        "local_qpn": "req.localqpn",
        "responder_resources": "req.responderres",
        "local_eecn": "req.localeecn",
        "initiator_depth": "req.initdepth",
        "remote_eecn": "req.remoteeecn",
        "remote_cm_response_timeout": "req.remoteresptout",
        "transport_type": "req.transpsvctype",
        "end_to_end_flow_control": "req.e2eflowctrl",
        "starting_psn": "req.startpsn",
        "local_cm_response_timeout": "req.localresptout",
        "retry_count": "req.retrcount",
        "partition_key": "req.pkey",
        "path_mtu": "req.pppmtu",
        "rdc_exists": "req.rdcexist",
        "rnr_retry_count": "req.rnrretrcount",
        "max_cm_retries": "req.maxcmretr",
        "srq": "req.srq",
        "extended_transport_type": "req.ext_transport",
        "alternate_local_gid": "req.alt_localgid",
        "alternate_remote_gid": "req.alt_remotegid",
        "private_data": "req.private",
        **{f"primary_{ours}": f"req.prim_{theirs}" for ours, theirs in _PATH.items()},
        **{f"alternate_{ours}": f"req.alt_{theirs}" for ours, theirs in _PATH.items()},
    },
    CmRep: {
        "local_comm_id": "rep",
        "remote_comm_id": "rep.remotecommid",
        "local_qkey": "rep.localqkey",
        "local_qpn": "rep.localqpn",
        "local_eecn": "rep.localeecn",
        "starting_psn": "rep.startpsn",
        "responder_resources": "rep.respres",
        "initiator_depth": "rep.initdepth",
        "target_ack_delay": "rep.tgtackdelay",
        "failover_accepted": "rep.failoveracc",
        "end_to_end_flow_control": "rep.e2eflowctrl",
        "rnr_retry_count": "rep.rnrretrcount",
        "srq": "rep.srq",
        "local_ca_guid": "rep.localcaguid",
        "private_data": "rep.private",
    },
    CmRej: {
        **{ours: f"rej.{theirs}" for ours, theirs in _IDS.items()},
        "message": "rej.msgrej",
        "info_length": "rej.rejinfolen",
        "reason": "rej.reason",
        "info": "rej.ari",
        "private_data": "rej.private",
    },
    CmRtu: {
        **{ours: f"rtu.{theirs}" for ours, theirs in _IDS.items()},
        "private_data": "rtu.private",
    },
    CmDreq: {
        **{ours: f"dreq.{theirs}" for ours, theirs in _IDS.items()},
        "remote_qpn": "req.remoteqpneecn",
        "private_data": "dreq.private",
    },
    CmDrep: {
        **{ours: f"drsp.{theirs}" for ours, theirs in _IDS.items()},
        "private_data": "drsp.private",
    },
}


def random_message(cls: type[CmMessage], rng: random.Random) -> CmMessage:
    values: dict[str, object] = {"transaction_id": rng.getrandbits(64)}
    for row in layout(cls):
        if row.kind is bytes:
            values[row.name] = rng.randbytes(row.bits // 8)
        else:
            values[row.name] = row.kind(rng.getrandbits(row.bits))
    return cls(**values)


def tshark_reads(mads: list[bytes], fields: list[str], folder: Path) -> list[list[str]]:
    """What tshark shows of the ``infiniband.*`` fields of MADs in a capture, one row a MAD."""
    flow = Flow("192.0.2.1", "192.0.2.2", 49152)
    file = [bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000")]
    for mad in mads:
        bth = BTH(Transport.UD | Op.SEND_ONLY, dest_qp=1, psn=0)
        packet = build(Packet(bth, mad, deth=DETH(GSI_QKEY, 1)))
        udp = seal(packet, flow, 0)
        frame = bytes(12) + b"\x08\0"
        frame += struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(udp), 0, 0x4000, 64, 17, 0)
        frame += bytes([192, 0, 2, 1, 192, 0, 2, 2])
        frame += struct.pack(">HHHH", 49152, 4791, 8 + len(udp), 0) + udp
        file += [struct.pack("<IIII", 0, 0, len(frame), len(frame)), frame]
    path = folder / "mads.pcap"
    path.write_bytes(b"".join(file))
    asked = [word for name in fields for word in ("-e", f"infiniband.{name}")]
    shown = subprocess.run(
        ["tshark", "-n", "-r", path, "-T", "fields", "-E", "occurrence=f", *asked],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [line.split("\t") for line in shown.splitlines()]


def as_number(text: str) -> int:
    return int(text, 0)


@pytest.mark.needs_tshark
@pytest.mark.parametrize("cls", TSHARK)
def test_tshark_reads_every_field_as_it_was_set(cls: type[CmMessage], tmp_path: Path) -> None:
    rng = random.Random(cls.__name__)
    sent = [random_message(cls, rng) for _ in range(8)]
    fields = TSHARK[cls]
    unseen = {"primary_local_gid", "primary_remote_gid"} if cls is CmReq else set()
    rates = {name for name in (r.name for r in layout(cls)) if name.endswith(("label", "rate"))}
    assert set(fields) == {row.name for row in layout(cls)} - unseen - rates

    names = ["mad.transactionid", "mad.attributeid", *(f"cm.{name}" for name in fields.values())]
    rows = tshark_reads([build_mad(message) for message in sent], names, tmp_path)
    assert len(rows) == len(sent)
    for message, (transaction, attribute, *values) in zip(sent, rows, strict=True):
        assert as_number(transaction) == message.transaction_id
        assert as_number(attribute) == cls.ATTRIBUTE
        kinds = {row.name: row.kind for row in layout(cls)}
        for name, text in zip(fields, values, strict=True):
            expected = getattr(message, name)
            seen = bytes.fromhex(text.replace(":", "")) if kinds[name] is bytes else None
            assert (as_number(text) if seen is None else seen) == expected, name


@pytest.mark.needs_tshark
@pytest.mark.parametrize(
    ("source", "destination", "version"),
    [("10.77.0.2", "10.77.0.3", "4"), ("2001:db8::1", "2001:db8::2", "6")],
)
def test_tshark_reads_the_ip_header(
    source: str, destination: str, version: str, tmp_path: Path
) -> None:
    req = CmReq(
        service_id=service_id(7174),
        primary_local_gid=gid_of(source),
        primary_remote_gid=gid_of(destination),
        private_data=IpCmHeader.between(source, 40000, destination).pack() + b"told",
    )
    names = ["serviceid.dport", "ip_cm.majv", "ip_cm.ipv", "ip_cm.sport", "ip_cm.private"]
    names += [f"ip_cm.sip{version}", f"ip_cm.dip{version}"]
    # tshark shows the GIDs by the version of the packet around them, which here is 4.
    names += ["prim_localgid_ipv4", "prim_remotegid_ipv4"]
    fields = [f"cm.req.{name}" for name in names]
    (row,) = tshark_reads([build_mad(req)], fields, tmp_path)
    assert [as_number(text) for text in row[:4]] == [7174, 0, int(version), 40000]
    assert bytes.fromhex(row[4]) == b"told".ljust(56, b"\0")
    assert row[5:7] == [source, destination]
    assert row[7:] == [str(IPv4Address(gid_of(address)[12:])) for address in (source, destination)]


def test_mra_as_the_reference_lays_it_out() -> None:
    """Table 107: comm IDs, 2 bits of message, 5 bits of timeout, private data from 10 on."""
    mra = CmMra(
        local_comm_id=0x11223344,
        remote_comm_id=0x55667788,
        message=1,
        service_timeout=0x15,
        private_data=b"x",
    )
    assert mra.pack().hex().rstrip("0") == "1122334455667788" + "40" + "a8" + "78"
