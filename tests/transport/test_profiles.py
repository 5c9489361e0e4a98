"""Profiles: each named deviation, beside what the specification has."""

import pytest

from rocemu.transport import PROFILES, SGE, SOFT_ROCE, SPEC, Profile
from rocemu.verbs import AsyncEventType, QPState, WCStatus, WROpcode
from rocemu.wire import AETH, RETH, Op
from tests.transport import test_kernel_requests as kernel_requests
from tests.transport.fabric import connect, drop, packet, statuses

WRITE, SEND = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_SEND
both = pytest.mark.parametrize("profile", [SPEC, SOFT_ROCE], ids=lambda p: p.name)


def test_profiles_go_by_their_names() -> None:
    assert PROFILES == {"spec": SPEC, "soft-roce": SOFT_ROCE}


@both
def test_a_send_that_is_too_long(profile: Profile) -> None:
    fabric = connect(profile=profile)
    fabric.b.recv(1, fabric.b.sge(0, 4))
    fabric.a.post(SEND, fabric.a.sge(0, 8))
    fabric.run()
    spec = profile is SPEC
    assert fabric.syndromes(fabric.b) == [(0x61 if spec else 0x63, 0x100, 0)]
    assert statuses(fabric.b.receives()) == [
        (1, WCStatus.IBV_WC_LOC_LEN_ERR if spec else WCStatus.IBV_WC_LOC_QP_OP_ERR)
    ]
    assert statuses(fabric.a.sends()) == [
        (1, WCStatus.IBV_WC_REM_INV_REQ_ERR if spec else WCStatus.IBV_WC_REM_OP_ERR)
    ]


@both
def test_a_receive_that_may_not_be_written(profile: Profile) -> None:
    fabric = connect(profile=profile)
    fabric.b.recv(1, SGE(fabric.b.mr.va, 64, 0xBAD00))
    fabric.a.post(SEND, fabric.a.sge(0, 8))
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x63, 0x100, 0)]
    expected = WCStatus.IBV_WC_LOC_PROT_ERR if profile is SPEC else WCStatus.IBV_WC_LOC_QP_OP_ERR
    assert statuses(fabric.b.receives()) == [(1, expected)]


@both
def test_an_r_key_violation_raises_an_event_under_spec_alone(profile: Profile) -> None:
    fabric = connect(profile=profile)
    fabric.a.post(WRITE, fabric.a.sge(0, 8), remote_addr=0, rkey=0xBAD00)
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x62, 0x100, 0)]
    events = [AsyncEventType.IBV_EVENT_QP_ACCESS_ERR] if profile is SPEC else []
    assert fabric.b.async_events() == events


@both
def test_a_write_with_immediate_and_a_bad_key(profile: Profile) -> None:
    fabric = connect(profile=profile)
    fabric.b.recv(1)
    opcode = WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM
    fabric.a.post(opcode, fabric.a.sge(0, 8), remote_addr=0, rkey=0xBAD00)
    fabric.run()
    expected = WCStatus.IBV_WC_LOC_ACCESS_ERR if profile is SPEC else WCStatus.IBV_WC_REM_ACCESS_ERR
    assert statuses(fabric.b.receives()) == [(1, expected)]
    assert fabric.b.async_events() == []


@both
def test_a_reserved_opcode(profile: Profile) -> None:
    fabric = connect(profile=profile)
    raw = bytearray(packet(Op.SEND_ONLY, 0x100, bytes(8)))
    raw[0] = 0x18
    fabric.inject(bytes(raw))
    fabric.run()
    assert fabric.syndromes(fabric.b) == ([(0x61, 0x100, 0)] if profile is SPEC else [])
    state = QPState.IBV_QPS_ERR if profile is SPEC else QPState.IBV_QPS_RTS
    assert fabric.b.qp.state is state


@both
def test_retry_count_seven(profile: Profile) -> None:
    """Twenty losses in a row are too many for seven retries, not for infinitely many."""
    fabric = connect(profile=profile, link=drop(*range(20)))
    fabric.a.post(WRITE, fabric.a.sge(0, 8), to=(fabric.b.mr, 0))
    fabric.run()
    expected = WCStatus.IBV_WC_RETRY_EXC_ERR if profile is SPEC else WCStatus.IBV_WC_SUCCESS
    assert statuses(fabric.a.sends()) == [(1, expected)]


@pytest.mark.parametrize("syndrome", [0x64, 0x65, 0x7F])
@both
def test_naks_that_are_reserved(profile: Profile, syndrome: int) -> None:
    fabric = connect(profile=profile, link=lambda sent: (), a_attr={"retry_cnt": 0})
    fabric.a.post(WRITE, fabric.a.sge(0, 8), to=(fabric.b.mr, 0))
    fabric._collect()
    fabric.inject(packet(Op.ACKNOWLEDGE, 0x100, aeth=AETH(syndrome, 0)), to=fabric.a)
    if profile is SOFT_ROCE:
        expected = [(1, WCStatus.IBV_WC_REM_OP_ERR)]
    elif syndrome == 0x64:
        expected = [(1, WCStatus.IBV_WC_REM_INV_RD_REQ_ERR)]
    else:
        expected = []
    assert statuses(fabric.a.sends()) == expected


@both
def test_a_bad_lkey_of_ones_own(profile: Profile) -> None:
    fabric = connect(profile=profile)
    fabric.a.post(WRITE, SGE(fabric.a.mr.va, 8, 0xBAD00), to=(fabric.b.mr, 0))
    fabric.run()
    expected = WCStatus.IBV_WC_LOC_PROT_ERR if profile is SPEC else WCStatus.IBV_WC_WR_FLUSH_ERR
    assert statuses(fabric.a.sends()) == [(1, expected)]
    assert fabric.log == []


@both
def test_duplicates_in_a_row(profile: Profile) -> None:
    fabric = connect(profile=profile)
    fabric.b.recv(1, fabric.b.sge(0, 64))
    once = packet(Op.SEND_ONLY, 0x100, bytes(8))
    for _ in range(3):
        fabric.inject(once)
    fabric.run()
    assert len(fabric.syndromes(fabric.b)) == (1 if profile is SPEC else 3)


@both
def test_more_reads_than_the_responder_has_resources_for(profile: Profile) -> None:
    fabric = connect(profile=profile, b_attr={"max_dest_rd_atomic": 1})
    reth = RETH(fabric.b.mr.va, fabric.b.mr.rkey, 8)
    for psn in (0x100, 0x101):
        fabric.inject(packet(Op.RDMA_READ_REQUEST, psn, reth=reth))
    fabric.run()
    answers = fabric.syndromes(fabric.b)
    assert answers[0] == (0x1F, 0x100, 1)
    assert answers[1] == ((0x61, 0x101, 1) if profile is SPEC else (0x1F, 0x101, 2))


@pytest.fixture
def as_soft_roce(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's conversations, with our device behaving as the kernel's."""
    make = kernel_requests.end

    def end(*arguments: object, **options: object) -> object:
        made = make(*arguments, **options)  # type: ignore[arg-type]
        made.device.profile = SOFT_ROCE
        return made

    monkeypatch.setattr(kernel_requests, "end", end)
    # What is left: sequence NAKs after an RNR NAK are timing.
    late = {k: v for k, v in kernel_requests.DIFFERENCES.items() if v[0] == kernel_requests.ENOUGH}
    monkeypatch.setattr(kernel_requests, "DIFFERENCES", late)


@pytest.mark.usefixtures("as_soft_roce")
@pytest.mark.parametrize("name", kernel_requests.CASES)
def test_under_soft_roce_the_kernels_answers_are_ours(name: str) -> None:
    kernel_requests.test_requests_of_the_kernel(name)
