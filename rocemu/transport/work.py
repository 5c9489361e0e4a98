"""Work requests and completions, with the names of ibverbs."""

from collections.abc import Sequence
from dataclasses import dataclass

from rocemu.protection import BindInfo, FastRegion, MemoryWindow
from rocemu.transport.errors import QPError
from rocemu.verbs import AccessFlags, SendFlags, WCFlags, WCOpcode, WCStatus, WROpcode

__all__ = ["SGE", "WC", "BindMW", "RecvWR", "RegMR", "SendWR", "check_numbers"]


@dataclass(frozen=True, slots=True)
class SGE:
    """A piece of local memory: ``length`` bytes at ``addr`` under ``lkey``."""

    addr: int
    length: int
    lkey: int


@dataclass(frozen=True, slots=True)
class BindMW:
    """What IBV_WR_BIND_MW does: ``mw`` opens ``info`` with key ``rkey``, whose index is its own."""

    mw: MemoryWindow
    rkey: int
    info: BindInfo


@dataclass(frozen=True, slots=True)
class RegMR:
    """What IBV_WR_REG_MR does: open ``mr`` with ``access``; ``key`` is its rkey from then on.

    The low byte of ``key`` is the poster's choice and goes for the lkey too, the rest is fixed.
    """

    mr: FastRegion
    key: int
    access: AccessFlags


@dataclass(frozen=True, slots=True)
class SendWR:
    """A send work request (``ibv_send_wr``).

    For COMPARE AND SWAP ``compare_add`` is compared and ``swap`` stored; for FETCH AND ADD
    ``compare_add`` is added.  Atomics scatter the original value, 8 bytes in host (little-endian)
    order, to ``sg_list``.
    """

    wr_id: int
    opcode: WROpcode
    sg_list: Sequence[SGE] = ()
    send_flags: SendFlags = SendFlags.IBV_SEND_SIGNALED
    remote_addr: int = 0
    rkey: int = 0
    imm_data: int = 0
    compare_add: int = 0
    swap: int = 0
    invalidate_rkey: int = 0
    """SEND with Invalidate: the key that the peer is to take away; LOCAL_INV: our own."""
    bind_mw: BindMW | None = None
    reg_mr: RegMR | None = None
    flush_length: int = 0
    flush_placement: int = 1
    """FLUSH: 1 global visibility, 2 persistence, 3 both (``ibv_placement_type``)."""
    flush_selectivity: int = 0
    """FLUSH: 0 the range, 1 the whole region (``ibv_selectivity_level``)."""
    inline_data: bytes = b""
    """The message itself, in place of ``sg_list``, with IBV_SEND_INLINE."""


@dataclass(frozen=True, slots=True)
class RecvWR:
    """A receive work request (``ibv_recv_wr``)."""

    wr_id: int
    sg_list: Sequence[SGE] = ()


@dataclass(slots=True)
class WC:
    """A work completion (``ibv_wc``).

    With a status other than IBV_WC_SUCCESS only ``wr_id``, ``status``, ``qp_num`` and
    ``vendor_err`` say anything ([man] ibv_poll_cq); ``opcode`` is set all the same.
    """

    wr_id: int
    status: WCStatus
    opcode: WCOpcode
    qp_num: int
    byte_len: int = 0
    imm_data: int | None = None
    invalidated_rkey: int | None = None
    wc_flags: WCFlags = WCFlags(0)
    vendor_err: int = 0


# Widths in bits of what ibverbs declares as unsigned integers.
_SGE_BITS = (("addr", 64), ("length", 32), ("lkey", 32))
_SEND_BITS = (
    ("remote_addr", 64),
    ("rkey", 32),
    ("imm_data", 32),
    ("compare_add", 64),
    ("swap", 64),
    ("invalidate_rkey", 32),
    ("flush_length", 32),
    ("flush_placement", 4),
    ("flush_selectivity", 2),
)


def check_numbers(wr: SendWR | RecvWR) -> None:
    """Raise :class:`QPError` for a number that its field in a header cannot hold."""
    if isinstance(wr, SendWR):
        _check(wr, _SEND_BITS)
    for sge in wr.sg_list:
        _check(sge, _SGE_BITS)


def _check(holder: SendWR | SGE, fields: tuple[tuple[str, int], ...]) -> None:
    for name, bits in fields:
        value = getattr(holder, name)
        if value < 0 or value >> bits:
            raise QPError(f"{name} {value:#x}: not an unsigned number of {bits} bits")
