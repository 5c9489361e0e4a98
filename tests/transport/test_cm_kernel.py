"""The connection manager against the kernel's own MADs (pcaps/soft-roce/rping.pcap)."""

import struct
from pathlib import Path
from typing import Any

import pytest

from rocemu.transport import (
    ConnectRequest,
    Disconnected,
    Established,
    QPStateChange,
)
from rocemu.verbs import MTU, QPState
from rocemu.wire import (
    BitFields,
    CmDrep,
    CmDreq,
    CmRep,
    CmReq,
    CmRtu,
    build_mad,
    parse,
    parse_mad,
)
from tests.transport.cm_world import (
    READ_WRITE,
    answers_to,
    device,
    queue_pair,
)

RPING = Path(__file__).parents[2] / "pcaps" / "soft-roce" / "rping.pcap"


def kernel_packets() -> list[Any]:
    """The RoCEv2 packets of rping between two kernels (classic pcap, Ethernet, IPv4)."""
    data, packets, offset = RPING.read_bytes(), [], 24
    while offset < len(data):
        (length,) = struct.unpack_from("<I", data, offset + 8)
        frame = data[offset + 16 : offset + 16 + length]
        offset += 16 + length
        if frame[12:14] == b"\x08\0" and frame[23] == 17 and frame[36:38] == b"\x12\xb7":
            packets.append((".".join(map(str, frame[26:30])), parse(frame[42:-4])))
    return packets


def kernel_mads() -> dict[type[BitFields], bytes]:
    mads = [bytes(packet.payload) for _, packet in kernel_packets() if packet.bth.dest_qp == 1]
    return {type(parse_mad(mad)): mad for mad in mads}


def test_the_kernels_req_makes_a_connection() -> None:
    mads = kernel_mads()
    server = device("10.77.0.3", 5)
    server.cm.listen(7174)
    assert answers_to(server, mads[CmReq], "10.77.0.2") == []
    event = server.next_event()
    assert isinstance(event, ConnectRequest)
    offer = event.connection
    assert (offer.peer_address, offer.port, offer.source_port) == ("10.77.0.2", 7174, 0x9376)
    assert offer.private_data == bytes(56)
    qp = queue_pair(server)
    server.cm.accept(offer, qp, b"", access=READ_WRITE, now=0.0)
    assert qp.state is QPState.IBV_QPS_RTS
    attr = qp.attr
    assert (attr.dest_qp_num, attr.sq_psn) == (0x1E, 0x668D0C)
    assert (attr.max_rd_atomic, attr.max_dest_rd_atomic) == (1, 1)
    assert (attr.path_mtu, attr.timeout) == (MTU.IBV_MTU_4096, 17)
    assert (attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) == (7, 7, 0)
    assert qp.flow.source_port == 63319  # the port that both kernels used for this flow label

    ((_, (packet,)),) = server.to_send(0.0)
    rep = parse_mad(bytes(parse(packet).payload))
    theirs = parse_mad(mads[CmRep])
    assert isinstance(rep, CmRep)
    assert isinstance(theirs, CmRep)
    assert rep.starting_psn == attr.rq_psn
    for name in (
        "transaction_id",
        "remote_comm_id",
        "responder_resources",
        "initiator_depth",
        "target_ack_delay",
        "rnr_retry_count",
        "local_qkey",
        "srq",
        "end_to_end_flow_control",
        "private_data",
    ):
        assert getattr(rep, name) == getattr(theirs, name), name

    for cls, event_type, answer in ((CmRtu, Established, []), (CmDreq, Disconnected, [CmDrep])):
        message = parse_mad(mads[cls])
        assert isinstance(message, (CmRtu, CmDreq))
        message.remote_comm_id = rep.local_comm_id
        if isinstance(message, CmDreq):
            message.remote_qpn = qp.qp_num
        answers = answers_to(server, build_mad(message), "10.77.0.2")
        assert [type(a) for a in answers] == answer
        events = []
        while event := server.next_event():
            if not isinstance(event, QPStateChange):
                events.append(event)
        assert [type(e) for e in events] == [event_type]
    assert qp.state is QPState.IBV_QPS_ERR


def test_the_kernels_rep_completes_a_connection() -> None:
    mads = kernel_mads()
    client = device("10.77.0.2", 5)
    qp = queue_pair(client)
    ours = client.cm.connect(qp, "10.77.0.3", 7174, access=READ_WRITE, now=0.0)
    client.to_send(0.0)
    rep = parse_mad(mads[CmRep])
    assert isinstance(rep, CmRep)
    rep.remote_comm_id = ours.local_comm_id
    (rtu,) = answers_to(client, build_mad(rep), "10.77.0.3")
    assert isinstance(rtu, CmRtu)
    assert (rtu.local_comm_id, rtu.remote_comm_id) == (ours.local_comm_id, 0x088DA52F)
    assert (qp.state, qp.attr.dest_qp_num) == (QPState.IBV_QPS_RTS, 0x1E)
    assert (qp.attr.max_rd_atomic, qp.attr.max_dest_rd_atomic) == (1, 1)
    assert qp.attr.rnr_retry == 7
    assert qp.attr.sq_psn == 0x207DFD


@pytest.mark.parametrize(("source", "told_by"), [("10.77.0.2", CmRep), ("10.77.0.3", CmReq)])
def test_kernels_begin_with_the_psn_that_the_peer_told(source: str, told_by: Any) -> None:
    """The capture itself shows what a starting PSN is: the sender of the message *receives* it."""
    told = parse_mad(kernel_mads()[told_by])
    requests = [
        packet.bth.psn
        for sender, packet in kernel_packets()
        if sender == source and packet.bth.dest_qp != 1 and packet.info.is_request
    ]
    assert isinstance(told, (CmReq, CmRep))
    assert requests[0] == told.starting_psn
