"""Moves of a queue pair: which exist, what they need, what they take, and refusals."""

import copy
from itertools import product

import pytest

from rocemu.transport import AddressVector, QPAttr, QPError, QPStateChange
from rocemu.verbs import MTU, QPAttrMask, QPState
from tests.transport.fabric import A_ADDRESS, ALL, B_ADDRESS, Side

RESET, INIT, RTR = QPState.IBV_QPS_RESET, QPState.IBV_QPS_INIT, QPState.IBV_QPS_RTR
RTS, SQD, ERR = QPState.IBV_QPS_RTS, QPState.IBV_QPS_SQD, QPState.IBV_QPS_ERR

# The lists of ibv_modify_qp's man page for RC, as text; alternate paths are not supported.
NEEDS = {
    (RESET, INIT): "PKEY_INDEX PORT ACCESS_FLAGS",
    (INIT, RTR): "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
    (RTR, RTS): "SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC",
}
TAKES = {
    (INIT, INIT): "PKEY_INDEX PORT ACCESS_FLAGS",
    (INIT, RTR): "ACCESS_FLAGS PKEY_INDEX",
    (RTR, RTS): "CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER",
    (RTS, RTS): "CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER",
    (SQD, RTS): "CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER",
    (RTS, SQD): "EN_SQD_ASYNC_NOTIFY",
    (SQD, SQD): "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC "
    "ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER",
}
MOVES = {
    RESET: {RESET, INIT},
    INIT: {RESET, INIT, RTR, ERR},
    RTR: {RESET, RTS, ERR},
    RTS: {RESET, RTS, SQD, ERR},
    SQD: {RESET, RTS, SQD, ERR},
    ERR: {RESET, ERR},
}
LEGAL = [(old, new) for old, news in MOVES.items() for new in sorted(news)]


def bits(names: str) -> QPAttrMask:
    mask = QPAttrMask(0)
    for name in names.split():
        mask |= QPAttrMask[f"IBV_QP_{name}"]
    return mask


def needed(move: tuple[QPState, QPState]) -> QPAttrMask:
    return bits(NEEDS.get(move, ""))


def attributes(state: QPState, current: QPState = RESET) -> QPAttr:
    """Values that are legal and differ from the defaults."""
    return QPAttr(
        qp_state=state,
        cur_qp_state=current,
        en_sqd_async_notify=True,
        qp_access_flags=ALL,
        av=AddressVector(B_ADDRESS, tos=8),
        path_mtu=MTU.IBV_MTU_512,
        timeout=3,
        retry_cnt=1,
        rnr_retry=2,
        rq_psn=0x111,
        max_rd_atomic=5,
        min_rnr_timer=4,
        sq_psn=0x222,
        max_dest_rd_atomic=6,
        dest_qp_num=0x333,
    )


WAY = {
    RESET: [],
    INIT: [INIT],
    RTR: [INIT, RTR],
    RTS: [INIT, RTR, RTS],
    SQD: [INIT, RTR, RTS, SQD],
    ERR: [INIT, ERR],
}


def in_state(state: QPState) -> Side:
    side = Side(A_ADDRESS, 1)
    for new in WAY[state]:
        move = (side.qp.state, new)
        side.qp.modify(attributes(new), QPAttrMask.IBV_QP_STATE | needed(move))
    side.drain_events()
    side.events.clear()
    return side


def snapshot(side: Side) -> tuple[QPState, QPAttr, object, object]:
    return side.qp.state, copy.copy(side.qp.attr), side.qp.requester, side.qp.responder


def refused(side: Side, attr: QPAttr, mask: QPAttrMask, match: str) -> None:
    before = snapshot(side)
    with pytest.raises(QPError, match=match):
        side.qp.modify(attr, mask)
    assert snapshot(side) == before
    side.drain_events()
    assert side.events == []


@pytest.mark.parametrize(("old", "new"), LEGAL)
def test_a_move_with_what_it_needs(old: QPState, new: QPState) -> None:
    side = in_state(old)
    side.qp.modify(attributes(new), QPAttrMask.IBV_QP_STATE | needed((old, new)))
    assert side.qp.state is new
    side.drain_events()
    changes = [event for event in side.events if isinstance(event, QPStateChange)]
    assert changes == ([] if old is new else [QPStateChange(0x11, old, new)])


@pytest.mark.parametrize(
    ("old", "new"), [(o, n) for o, n in product(MOVES, QPState) if n not in MOVES[o]]
)
def test_a_move_that_does_not_exist(old: QPState, new: QPState) -> None:
    everything = QPAttrMask.IBV_QP_STATE | needed((old, new))
    refused(in_state(old), attributes(new), everything, f"from {old.name} to {new.name}")


@pytest.mark.parametrize(
    ("move", "name"), [(move, name) for move, names in NEEDS.items() for name in names.split()]
)
def test_without_one_that_it_needs(move: tuple[QPState, QPState], name: str) -> None:
    mask = QPAttrMask.IBV_QP_STATE | needed(move) & ~bits(name)
    refused(in_state(move[0]), attributes(move[1]), mask, f"needs IBV_QP_{name}$")


@pytest.mark.parametrize(("old", "new"), LEGAL)
def test_every_other_attribute(old: QPState, new: QPState) -> None:
    """What the lists name is taken and set; what they do not name is refused."""
    takes = bits(TAKES.get((old, new), ""))
    for bit in QPAttrMask:
        if bit & (QPAttrMask.IBV_QP_STATE | needed((old, new))):
            continue
        side = in_state(old)
        attr = attributes(new, current=old)
        mask = QPAttrMask.IBV_QP_STATE | needed((old, new)) | bit
        if bit & takes:
            side.qp.modify(attr, mask)
            assert side.qp.state is new
        else:
            refused(side, attr, mask, f"does not take {bit.name}")


@pytest.mark.parametrize(
    ("move", "name", "field", "value"),
    [
        ((RESET, INIT), "PKEY_INDEX", "pkey_index", 1),
        ((RESET, INIT), "PORT", "port_num", 0),
        ((RESET, INIT), "PORT", "port_num", 2),
        ((INIT, RTR), "PATH_MTU", "path_mtu", 0),
        ((INIT, RTR), "PATH_MTU", "path_mtu", 6),
        ((INIT, RTR), "RQ_PSN", "rq_psn", 1 << 24),
        ((INIT, RTR), "DEST_QPN", "dest_qp_num", 1 << 24),
        ((INIT, RTR), "MIN_RNR_TIMER", "min_rnr_timer", 32),
        ((INIT, RTR), "MAX_DEST_RD_ATOMIC", "max_dest_rd_atomic", 256),
        ((INIT, RTR), "AV", "av", AddressVector("2001:db8::2")),
        ((RTR, RTS), "SQ_PSN", "sq_psn", -1),
        ((RTR, RTS), "TIMEOUT", "timeout", 32),
        ((RTR, RTS), "RETRY_CNT", "retry_cnt", 8),
        ((RTR, RTS), "RNR_RETRY", "rnr_retry", 8),
        ((RTR, RTS), "MAX_QP_RD_ATOMIC", "max_rd_atomic", -1),
    ],
)
def test_a_value_out_of_range(
    move: tuple[QPState, QPState], name: str, field: str, value: object
) -> None:
    attr = attributes(move[1])
    setattr(attr, field, value)
    match = "cannot be reached" if field == "av" else field
    refused(in_state(move[0]), attr, QPAttrMask.IBV_QP_STATE | needed(move), match)


@pytest.mark.parametrize("address", ["", "host.example", "192.0.2.256", "1.2.3"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(QPError, match="is no IP address"):
        AddressVector(address)


@pytest.mark.parametrize(("field", "value"), [("tos", 256), ("ttl", -1), ("flow_label", 1 << 20)])
def test_a_path_with_a_value_out_of_range(field: str, value: int) -> None:
    with pytest.raises(QPError, match=field):
        AddressVector(B_ADDRESS, **{field: value})


def test_an_address_is_compared_in_its_usual_form() -> None:
    assert AddressVector("2001:DB8:0:0:0:0:0:1").address == "2001:db8::1"


def test_a_wrong_current_state() -> None:
    side = in_state(RTS)
    mask = QPAttrMask.IBV_QP_CUR_STATE | QPAttrMask.IBV_QP_ACCESS_FLAGS
    refused(side, attributes(RTS, current=SQD), mask, "current state is IBV_QPS_RTS")


def test_only_what_the_mask_names_is_set() -> None:
    side = in_state(RTS)
    side.qp.modify(QPAttr(min_rnr_timer=31, timeout=30), QPAttrMask.IBV_QP_MIN_RNR_TIMER)
    assert (side.qp.attr.min_rnr_timer, side.qp.attr.timeout) == (31, 3)
    assert side.qp.state is RTS
