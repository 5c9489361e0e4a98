"""Work requests that never leave: binds, fast registration, local invalidation ([IBTA] 10.8.3)."""

from typing import TYPE_CHECKING

from rocemu.protection import BindError
from rocemu.transport.errors import QPError
from rocemu.transport.work import SendWR
from rocemu.verbs import WCStatus, WROpcode

if TYPE_CHECKING:
    from rocemu.transport.qp import QueuePair

__all__ = ["check_local", "work_here"]


def check_local(wr: SendWR) -> None:
    """Raise QPError when what local work works on is missing, or given to another opcode."""
    for opcode, what in (
        (WROpcode.IBV_WR_BIND_MW, wr.bind_mw),
        (WROpcode.IBV_WR_REG_MR, wr.reg_mr),
    ):
        if (wr.opcode is opcode) != (what is not None):
            raise QPError(f"{wr.opcode.name}: bind_mw and reg_mr go with their opcodes only")


def work_here(qp: "QueuePair", wr: SendWR) -> WCStatus:
    """Do what ``wr`` asks for; any other status than success has changed nothing."""
    table, pd = qp.device.table, qp.pd.handle
    try:
        if wr.bind_mw is not None:
            bind = wr.bind_mw
            table.bind(bind.mw, bind.rkey, bind.info, pd, qp.qp_num)
        elif wr.reg_mr is not None:
            table.fast_register(wr.reg_mr.mr, wr.reg_mr.key, wr.reg_mr.access, pd)
        elif not table.invalidate(wr.invalidate_rkey, pd, qp.qp_num):
            return WCStatus.IBV_WC_LOC_QP_OP_ERR
    except BindError:
        if wr.bind_mw is not None:
            return WCStatus.IBV_WC_MW_BIND_ERR
        return WCStatus.IBV_WC_LOC_QP_OP_ERR
    return WCStatus.IBV_WC_SUCCESS
