"""The kernel's answers, played to our requester: its requests and completions are the kernel's.

Both ends of the captures are Soft-RoCE's.  Ours is given the same work with the same numbers, then
the recorded answers; every request must be the same to the byte.
"""

import pytest

from rocemu.transport import SGE, Datagram, SendWR
from rocemu.verbs import QPState, WCStatus, WROpcode
from tests.transport.kernel import (
    ACCESS,
    CASES,
    CLIENT,
    INVALID,
    OPERATIONAL,
    RNR,
    SERVER,
    Case,
    End,
    end,
    region_of,
    sent,
    spoken,
)

OPERATIONS = {
    "write": WROpcode.IBV_WR_RDMA_WRITE,
    "write_imm": WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM,
    "send": WROpcode.IBV_WR_SEND,
    "send_imm": WROpcode.IBV_WR_SEND_WITH_IMM,
    "read": WROpcode.IBV_WR_RDMA_READ,
    "faa": WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD,
    "cas": WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP,
}
#: What the kernel's requester completed the request with, by the NAK that ended the capture.
STATUS = {
    RNR: WCStatus.IBV_WC_RNR_RETRY_EXC_ERR,
    INVALID: WCStatus.IBV_WC_REM_INV_REQ_ERR,
    ACCESS: WCStatus.IBV_WC_REM_ACCESS_ERR,
    OPERATIONAL: WCStatus.IBV_WC_REM_OP_ERR,
}
OK, FLUSHED = WCStatus.IBV_WC_SUCCESS, WCStatus.IBV_WC_WR_FLUSH_ERR


def comparable(request: bytes) -> bytes:
    """A request without the compare field of a FetchAdd: it means nothing there."""
    return request[:32] if request[0] == 0x14 else request


def post(ours: End, wr_id: int, operation: str, length: int, va: int, rkey: int) -> None:
    """The work that was recorded: data from the start of the region, add or compare 5, swap 7."""
    ours.qp.post_send(
        SendWR(
            wr_id,
            OPERATIONS[operation],
            [SGE(ours.mr.va, length, ours.mr.lkey)],
            remote_addr=va,
            rkey=rkey,
            imm_data=0x04030201,
            compare_add=5,
            swap=7,
        )
    )


@pytest.mark.parametrize("name", CASES)
def test_requests_and_completions(name: str) -> None:
    case, talk = CASES[name], spoken(name)
    requests = [said.payload for said in talk if said.source == CLIENT]
    answers = [said for said in talk if said.source == SERVER and said.packet]
    warm = talk[0].packet
    assert warm is not None
    assert warm.reth is not None
    assert answers[0].packet is not None
    va, rkey = region_of(name, talk)
    ours = end(
        CLIENT,
        SERVER,
        qpn=answers[0].packet.bth.dest_qp,
        dest_qpn=warm.bth.dest_qp,
        psn=0x100,
        peer_psn=0x800200,
        case=Case("", 0),
        va=1 << 40,
        rkey=0x5500,
    )
    ours.mr.memory[:] = bytes(range(256)) * 32

    post(ours, 1, "write", 8, warm.reth.va, warm.reth.rkey)
    ours_sent = sent(ours.device)
    first = answers.pop(0)
    ours.device.receive([Datagram(first.payload, SERVER, CLIENT)], 0.0)
    post(ours, 10, case.operation, case.length, va + case.offset, rkey + case.key & 0xFFFFFFFF)
    post(ours, 11, "write", 8, warm.reth.va, warm.reth.rkey)
    ours_sent += sent(ours.device)
    for said in answers:
        ours.device.receive([Datagram(said.payload, SERVER, CLIENT)], 0.0)

    # Where a NAK came fast, the kernel had not sent all of it yet.
    assert list(map(comparable, requests)) == list(map(comparable, ours_sent))[: len(requests)]
    completions = ours.qp.init_attr.send_cq.poll(9)
    refusals = [
        STATUS[said.packet.aeth.syndrome]
        for said in [first, *answers]
        if said.packet and said.packet.aeth and said.packet.aeth.syndrome in STATUS
    ]
    if name == "write_ro_qp":  # its queue pair takes no WRITE, and the first request was one
        expected = [(1, refusals[0]), (10, FLUSHED), (11, FLUSHED)]
    elif refusals:
        expected = [(1, OK), (10, refusals[0]), (11, FLUSHED)]
    else:
        expected = [(1, OK), (10, OK), (11, OK)]
        assert len(requests) == len(ours_sent)
    assert [(wc.wr_id, wc.status) for wc in completions] == expected
    assert ours.qp.state is (QPState.IBV_QPS_ERR if refusals else QPState.IBV_QPS_RTS)
    if case.operation in ("read", "faa", "cas"):
        read = b"".join(bytes(said.packet.payload) for said in answers if said.packet)
        original = bytes(8) if case.operation != "read" and not refusals else b""
        got = read + original
        assert bytes(ours.mr.memory[: len(got)]) == got
        assert bytes(ours.mr.memory[len(got) : len(got) + 8]) == bytes(
            i % 256 for i in range(len(got), len(got) + 8)
        )
