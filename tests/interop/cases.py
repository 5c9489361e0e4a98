"""One request that goes well or is refused, and what both ends and the wire then show.

Every case sends a good 8-byte WRITE to ``good`` (wr_id 1, PSN 0x100), waits for it, then the
request under test (wr_id 10, from PSN 0x101) with another good WRITE (wr_id 11) close behind.  The
outcomes are those of two Linux kernels facing each other (rdma_rxe 6.12 on both sides); the table
DIFFERENCES lists where rocemu, in the one role or the other, does something else, and why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rocemu.verbs import AccessFlags, WROpcode
from tests.interop.sides import ALL, REMOTE, SIZE, Setup

_W, _R, _A = (
    AccessFlags.IBV_ACCESS_REMOTE_WRITE,
    AccessFlags.IBV_ACCESS_REMOTE_READ,
    AccessFlags.IBV_ACCESS_REMOTE_ATOMIC,
)
WRITE, WRITE_IMM = WROpcode.IBV_WR_RDMA_WRITE, WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM
SEND, SEND_IMM = WROpcode.IBV_WR_SEND, WROpcode.IBV_WR_SEND_WITH_IMM
READ = WROpcode.IBV_WR_RDMA_READ
FAA, CAS = WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD, WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP

SEND_INV = 9  # IBV_WR_SEND_WITH_INV

#: In place of a status.
REFUSED_AT_POST = "refused at post"


@dataclass(frozen=True)
class Outcome:
    """``naks``: syndrome, PSN and MSN; ``sends``: statuses of wr_id 1, 10, 11 without IBV_WC_;
    ``states``: of requester and responder; ``receives``: wr_id, status, byte_len.
    """

    naks: tuple[tuple[int, int, int], ...] = ()
    sends: tuple[str, ...] = ("SUCCESS", "SUCCESS", "SUCCESS")
    states: tuple[str, str] = ("RTS", "RTS")
    receives: tuple[tuple[int, str, int], ...] = ()
    events: tuple[str, ...] = ()
    """Of the responder; the kernel's raises none."""


@dataclass(frozen=True)
class Case:
    op: int
    length: int
    then: Outcome
    rkey: int = 0
    """Added to the good one; likewise ``at`` to the address and ``lkey`` to the local key."""
    at: int = 0
    lkey: int = 0
    access: AccessFlags = ALL
    qp_access: AccessFlags = REMOTE
    other_pd: bool = False
    deregister: bool = False
    receives: tuple[int, ...] = ()
    """Lengths of the receives that are posted (wr_id 100 on)."""
    recv_lkey: int = 0
    late_receive: bool = False
    """A receive of 64 bytes (wr_id 200) is posted when the first RNR NAK has been seen."""
    rnr_retry: int = 1
    reads: int = 4
    qpn_off: int = 0
    in_init: bool = False
    """The responder stays in INIT."""
    warm: bool = True
    """The first good WRITE is sent."""
    requesters: tuple[str, ...] = ("kernel", "rocemu")

    @property
    def setup(self) -> Setup:
        """How the responder is made."""
        return Setup(access=self.access, qp_access=self.qp_access, other_pd=self.other_pd)


FINE = Outcome()
REMOTE_ACCESS = Outcome(
    ((0x62, 0x101, 1),), ("SUCCESS", "REM_ACCESS_ERR", "WR_FLUSH_ERR"), ("ERR", "ERR")
)
INVALID_REQUEST = Outcome(
    ((0x61, 0x101, 1),), ("SUCCESS", "REM_INV_REQ_ERR", "WR_FLUSH_ERR"), ("ERR", "ERR")
)
AT_ONCE = Outcome(
    ((0x61, 0x100, 0),), ("REM_INV_REQ_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR"), ("ERR", "ERR")
)
REMOTE_OPERATION = Outcome(
    ((0x63, 0x101, 1),),
    ("SUCCESS", "REM_OP_ERR", "WR_FLUSH_ERR"),
    ("ERR", "ERR"),
    ((100, "LOC_QP_OP_ERR", 0),),
)
NOT_READY = Outcome(
    ((0x2C, 0x101, 1), (0x60, 0x101, 1)),
    ("SUCCESS", "RNR_RETRY_EXC_ERR", "WR_FLUSH_ERR"),
    ("ERR", "RTS"),
)
UNANSWERED = Outcome((), ("RETRY_EXC_ERR", "WR_FLUSH_ERR"), ("ERR", "RTS"))
OWN_KEY = Outcome((), ("SUCCESS", "WR_FLUSH_ERR", "WR_FLUSH_ERR"), ("ERR", "RTS"))
INVALIDATED_WRONG_KEY = Outcome(
    (),
    ("SUCCESS", "SUCCESS", "RETRY_EXC_ERR"),
    ("ERR", "ERR"),
    ((100, "REM_INV_REQ_ERR", 0),),
)
NOT_POSTED = Outcome((), ("SUCCESS", REFUSED_AT_POST, "SUCCESS"))


def received(wr_id: int, byte_len: int) -> Outcome:
    return replace(FINE, receives=((wr_id, "SUCCESS", byte_len),))


_UNKNOWN = 0x12345600
CASES: dict[str, Case] = {
    "ok_write": Case(WRITE, 3000, FINE),
    "ok_read": Case(READ, 3000, FINE),
    "ok_send": Case(SEND, 3000, received(100, 3000), receives=(4096,)),
    "ok_send_imm": Case(SEND_IMM, 100, received(100, 100), receives=(4096,)),
    "ok_write_imm": Case(WRITE_IMM, 100, received(100, 100), receives=(0,)),
    "ok_faa": Case(FAA, 8, FINE),
    "ok_cas": Case(CAS, 8, FINE),
    "ok_write_zero": Case(WRITE, 0, FINE),
    "ok_read_zero": Case(READ, 0, FINE),
    "write_zero_badrkey": Case(WRITE, 0, FINE, rkey=0x12345678, at=1 << 40),
    "read_zero_badrkey": Case(READ, 0, FINE, rkey=0x12345678, at=1 << 40),
    "write_zero_atend": Case(WRITE, 0, FINE, at=SIZE + 4096),
    "write_badrkey": Case(WRITE, 64, REMOTE_ACCESS, rkey=_UNKNOWN),
    "write_badrkey_multi": Case(WRITE, 3000, REMOTE_ACCESS, rkey=_UNKNOWN),
    "write_badkeybyte": Case(WRITE, 64, REMOTE_ACCESS, rkey=1),
    "write_dereg": Case(WRITE, 64, REMOTE_ACCESS, deregister=True),
    "write_otherpd": Case(WRITE, 64, REMOTE_ACCESS, other_pd=True),
    "write_ro_mr": Case(WRITE, 64, REMOTE_ACCESS, access=ALL & ~_W),
    "write_ro_qp": Case(WRITE, 64, AT_ONCE, qp_access=_R | _A),
    "write_oob_end": Case(WRITE, 64, REMOTE_ACCESS, at=SIZE - 32),
    "write_oob_multi": Case(WRITE, 3000, REMOTE_ACCESS, at=SIZE - 1500),
    "write_oob_below": Case(WRITE, 64, REMOTE_ACCESS, at=-32),
    "write_oob_justend": Case(WRITE, 8, REMOTE_ACCESS, at=SIZE),
    "read_noaccess_mr": Case(READ, 64, REMOTE_ACCESS, access=ALL & ~_R),
    "read_noaccess_qp": Case(READ, 64, INVALID_REQUEST, qp_access=_W | _A),
    "read_badrkey": Case(READ, 64, REMOTE_ACCESS, rkey=_UNKNOWN),
    "read_oob": Case(READ, 3000, REMOTE_ACCESS, at=SIZE - 1500),
    "read_rdatom0": Case(READ, 64, INVALID_REQUEST, reads=0),
    "faa_noaccess_mr": Case(FAA, 8, REMOTE_ACCESS, access=ALL & ~_A),
    "faa_noaccess_qp": Case(FAA, 8, INVALID_REQUEST, qp_access=_W | _R),
    "faa_badrkey": Case(FAA, 8, REMOTE_ACCESS, rkey=_UNKNOWN),
    "faa_oob": Case(FAA, 8, REMOTE_ACCESS, at=SIZE),
    "faa_misaligned": Case(FAA, 8, NOT_POSTED, at=4),
    "cas_misaligned": Case(CAS, 8, NOT_POSTED, at=4),
    "send_rnr_retry0": Case(SEND, 64, NOT_READY, rnr_retry=0),
    "send_rnr_retry2": Case(SEND, 64, NOT_READY, rnr_retry=2),
    "send_rnr_then_recv": Case(
        SEND,
        64,
        replace(received(200, 64), naks=NOT_READY.naks),
        rnr_retry=7,
        late_receive=True,
    ),
    "write_imm_rnr": Case(WRITE_IMM, 64, NOT_READY, rnr_retry=0),
    "send_too_long": Case(SEND, 3000, REMOTE_OPERATION, receives=(100,)),
    "send_too_long_one": Case(SEND, 100, REMOTE_OPERATION, receives=(64,)),
    "send_bad_recv_lkey": Case(SEND, 64, REMOTE_OPERATION, receives=(64,), recv_lkey=1),
    "send_to_bad_qpn": Case(SEND, 64, UNANSWERED, receives=(64,), qpn_off=0x4000, warm=False),
    "send_to_init_qp": Case(
        SEND,
        64,
        replace(UNANSWERED, states=("ERR", "INIT")),
        receives=(64,),
        in_init=True,
        warm=False,
    ),
    "send_inv_bad": Case(  # an R_Key that was never issued
        SEND_INV, 64, INVALIDATED_WRONG_KEY, receives=(64,), requesters=("kernel",)
    ),
    "send_bad_lkey": Case(SEND, 64, OWN_KEY, receives=(64,), lkey=1),
}


#: By requester and case: what rocemu does otherwise than the kernel in its place, and why.
DIFFERENCES: dict[tuple[str, str], tuple[str, dict[str, object]]] = {
    **{
        ("kernel", name): (
            "silence after an RNR NAK until the expected PSN comes; the kernel sends one PSN"
            " sequence NAK for what was already on its way",
            {"naks": NOT_READY.naks[:1]},
        )
        for name in ("send_rnr_retry0", "send_rnr_retry2", "send_rnr_then_recv", "write_imm_rnr")
    },
    **{
        ("kernel", name): (
            "a message longer than its receive is a length error: Invalid Request, not Remote"
            " Operational Error, and the receive completes with the local length error",
            {
                "naks": INVALID_REQUEST.naks,
                "sends": INVALID_REQUEST.sends,
                "receives": ((100, "LOC_LEN_ERR", 0),),
            },
        )
        for name in ("send_too_long", "send_too_long_one")
    },
    ("kernel", "send_bad_recv_lkey"): (
        "the receive says what it was: IBV_WC_LOC_PROT_ERR; the kernel has one status for all",
        {"receives": ((100, "LOC_PROT_ERR", 0),)},
    ),
    ("kernel", "send_inv_bad"): (
        "neither ACK nor NAK (class J); the kernel acknowledges what it then fails",
        {"sends": ("SUCCESS", "RETRY_EXC_ERR", "WR_FLUSH_ERR")},
    ),
    ("rocemu", "send_bad_lkey"): (
        "the request whose own key is bad says so; the kernel flushes it like those behind it",
        {"sends": ("SUCCESS", "LOC_PROT_ERR", "WR_FLUSH_ERR")},
    ),
    **{
        ("rocemu", name): (
            "the kernel's user library refuses to post it; here the responder does",
            {
                "naks": INVALID_REQUEST.naks,
                "sends": INVALID_REQUEST.sends,
                "states": INVALID_REQUEST.states,
            },
        )
        for name in ("faa_misaligned", "cas_misaligned")
    },
}

#: The kernel's queue pairs raise no asynchronous event for what a peer does; rocemu's do, where no
#: receive tells it ([IBTA] C9-222.1.1).
EVENTS = {0x61: "IBV_EVENT_QP_REQ_ERR", 0x62: "IBV_EVENT_QP_ACCESS_ERR"}


def expected(name: str, requester: str) -> Outcome:
    """The outcome of a case when the one or the other requests."""
    outcome = CASES[name].then
    if (requester, name) in DIFFERENCES:
        _, fields = DIFFERENCES[requester, name]
        outcome = replace(outcome, **fields)
    fatal = [EVENTS[syndrome] for syndrome, _, _ in outcome.naks if syndrome in EVENTS]
    if requester == "kernel" and fatal and not outcome.receives:
        outcome = replace(outcome, events=tuple(fatal))
    return outcome
