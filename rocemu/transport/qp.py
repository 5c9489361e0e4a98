"""A reliable connected queue pair: states, attributes, and the way into ERR ([IBTA] 10.3)."""

from typing import TYPE_CHECKING, NamedTuple

from rocemu.protection import BindInfo, MemoryWindow, ProtectionDomain
from rocemu.transport.attributes import TRANSITIONS, QPAttr, QPInitAttr
from rocemu.transport.cq import CompletionQueue
from rocemu.transport.datagram import Datagram
from rocemu.transport.errors import QPError
from rocemu.transport.events import AsyncEvent, CompletionEvent, QPStateChange
from rocemu.transport.memory import LocalMemory
from rocemu.transport.requester import Requester
from rocemu.transport.responder import Responder
from rocemu.transport.work import WC, BindMW, RecvWR, SendWR, check_numbers
from rocemu.verbs import (
    AsyncEventType,
    MWType,
    QPAttrMask,
    QPState,
    SendFlags,
    WROpcode,
    mtu_bytes,
)
from rocemu.wire import PSN_MASK, Flow, OpcodeInfo, Packet

if TYPE_CHECKING:
    from rocemu.transport.device import Device

__all__ = ["ABILITIES", "Abilities", "QueuePair", "source_port"]

_S = QPState
#: Packets that one queue pair may put into one batch, so that others get their turn.
BURST = 64


class Abilities(NamedTuple):
    """What a state lets a queue pair do."""

    post_recv: bool
    post_send: bool
    requests: bool
    """Incoming requests are processed and answered."""
    responses: bool
    """Incoming responses are processed."""
    transmits: bool
    """The requester sends."""


#: [IBTA] 10.3.1.  In ERR posted work is taken and completes at once with IBV_WC_WR_FLUSH_ERR, and
#: nothing leaves but the replies owed up to the NAK for the fault that caused ERR.
ABILITIES: dict[QPState, Abilities] = {
    _S.IBV_QPS_RESET: Abilities(False, False, False, False, False),
    _S.IBV_QPS_INIT: Abilities(True, False, False, False, False),
    _S.IBV_QPS_RTR: Abilities(True, False, True, False, False),
    _S.IBV_QPS_RTS: Abilities(True, True, True, True, True),
    _S.IBV_QPS_SQD: Abilities(True, True, True, True, True),
    _S.IBV_QPS_SQE: Abilities(True, True, True, False, False),
    _S.IBV_QPS_ERR: Abilities(True, True, False, False, False),
}

# Attribute, its mask bit, and the values that it may have.
_FIELDS: tuple[tuple[str, QPAttrMask, range | None], ...] = (
    ("qp_access_flags", QPAttrMask.IBV_QP_ACCESS_FLAGS, None),
    ("pkey_index", QPAttrMask.IBV_QP_PKEY_INDEX, range(1)),
    ("port_num", QPAttrMask.IBV_QP_PORT, range(1, 2)),
    ("av", QPAttrMask.IBV_QP_AV, None),
    ("path_mtu", QPAttrMask.IBV_QP_PATH_MTU, range(1, 6)),
    ("timeout", QPAttrMask.IBV_QP_TIMEOUT, range(32)),
    ("retry_cnt", QPAttrMask.IBV_QP_RETRY_CNT, range(8)),
    ("rnr_retry", QPAttrMask.IBV_QP_RNR_RETRY, range(8)),
    ("rq_psn", QPAttrMask.IBV_QP_RQ_PSN, range(PSN_MASK + 1)),
    ("max_rd_atomic", QPAttrMask.IBV_QP_MAX_QP_RD_ATOMIC, range(256)),
    ("min_rnr_timer", QPAttrMask.IBV_QP_MIN_RNR_TIMER, range(32)),
    ("sq_psn", QPAttrMask.IBV_QP_SQ_PSN, range(PSN_MASK + 1)),
    ("max_dest_rd_atomic", QPAttrMask.IBV_QP_MAX_DEST_RD_ATOMIC, range(256)),
    ("dest_qp_num", QPAttrMask.IBV_QP_DEST_QPN, range(PSN_MASK + 1)),
    ("en_sqd_async_notify", QPAttrMask.IBV_QP_EN_SQD_ASYNC_NOTIFY, None),
)


def source_port(local_qpn: int, remote_qpn: int, flow_label: int | None = None) -> int:
    """UDP source port of a flow, 49152-65535, constant for a queue pair ([man] verbs.h).

    Without a flow label one is made of the two QPNs as the kernel does, so that both directions
    hash alike.
    """
    if flow_label is None:
        value = local_qpn * remote_qpn
        value ^= value >> 20
        value ^= value >> 40
        flow_label = value & 0xFFFFF
    return ((flow_label & 0x3FFF) ^ (flow_label >> 14)) | 0xC000


class QueuePair:
    """An RC queue pair; made by :meth:`Device.create_qp`, in state RESET."""

    def __init__(
        self, device: "Device", qp_num: int, pd: ProtectionDomain, init: QPInitAttr
    ) -> None:
        self.device = device
        self.qp_num = qp_num
        self.pd = pd
        self.init_attr = init
        self.memory = LocalMemory(device.table, pd, qp_num)
        self.attr = QPAttr()
        self.state = QPState.IBV_QPS_RESET
        self._reset()

    def _reset(self) -> None:
        self.attr = QPAttr()
        self.flow = Flow(self.device.address, self.device.address, 0)
        self.path_mtu = mtu_bytes(self.attr.path_mtu)
        self.requester = Requester(self)
        self.responder = Responder(self)
        self._established = False

    @property
    def dest_qp_num(self) -> int:
        return self.attr.dest_qp_num

    @property
    def alive(self) -> bool:
        """Not in ERR."""
        return self.state is not QPState.IBV_QPS_ERR

    def packets_of(self, length: int) -> int:
        """PSNs that a message of ``length`` bytes takes: at least one."""
        return -(-length // self.path_mtu) or 1

    # ------------------------------------------------------------------ modify

    def modify(self, attr: QPAttr, mask: QPAttrMask) -> None:
        """Change attributes and state (``ibv_modify_qp``).

        Raises :class:`QPError` (EINVAL) for a move that does not exist, a missing attribute, one
        that does not belong to the move, or a value out of range; nothing has changed then.
        """
        old = self.state
        new = attr.qp_state if mask & QPAttrMask.IBV_QP_STATE else old
        move = TRANSITIONS.get((old, new))
        if move is None:
            raise QPError(f"QP {self.qp_num:#x} cannot move from {old.name} to {new.name}")
        given = mask & ~QPAttrMask.IBV_QP_STATE
        if missing := move.required & ~given:
            raise QPError(f"{old.name} to {new.name} needs {_names(missing)}")
        if odd := given & ~move.required & ~move.optional:
            raise QPError(f"{old.name} to {new.name} does not take {_names(odd)}")
        if mask & QPAttrMask.IBV_QP_CUR_STATE and attr.cur_qp_state is not old:
            raise QPError(f"the current state is {old.name}, not {attr.cur_qp_state.name}")
        draining = old is QPState.IBV_QPS_SQD and self.requester.draining
        if draining and new in (QPState.IBV_QPS_SQD, QPState.IBV_QPS_RTS):
            raise QPError(f"QP {self.qp_num:#x} is still draining: wait for IBV_EVENT_SQ_DRAINED")
        fields = [(name, allowed) for name, bit, allowed in _FIELDS if given & bit]
        for name, allowed in fields:
            value = getattr(attr, name)
            if allowed is not None and value not in allowed:
                raise QPError(f"{name} {value}: allowed are {allowed[0]} to {allowed[-1]}")
        if given & QPAttrMask.IBV_QP_AV and (":" in attr.av.address) != self.flow.ipv6:
            raise QPError(f"{attr.av.address} cannot be reached from {self.device.address}")
        if new is QPState.IBV_QPS_RESET:
            self._reset()
        for name, _ in fields:
            setattr(self.attr, name, getattr(attr, name))
        self._derive(given)
        self._enter(new)

    def _derive(self, given: QPAttrMask) -> None:
        """Bring what follows from attributes up to date."""
        attr = self.attr
        if given & (QPAttrMask.IBV_QP_AV | QPAttrMask.IBV_QP_DEST_QPN):
            av = attr.av
            port = source_port(self.qp_num, attr.dest_qp_num, av.flow_label)
            self.flow = Flow(self.device.address, av.address, port, tos=av.tos, ttl=av.ttl)
        if given & QPAttrMask.IBV_QP_RQ_PSN:
            receives = self.responder.receives
            self.path_mtu = mtu_bytes(attr.path_mtu)
            self.responder = Responder(self)
            self.responder.receives = receives
        if given & QPAttrMask.IBV_QP_SQ_PSN:
            self.requester = Requester(self)

    def _enter(self, new: QPState) -> None:
        if new is QPState.IBV_QPS_ERR:
            self.responder.replies.clear()
            self.enter_error()
            return
        old, self.state = self.state, new
        if new is not old:
            self.device.emit(QPStateChange(self.qp_num, old, new))
        self.requester.tell_drained()
        self.device.activate(self)

    def enter_error(self) -> None:
        """Go to ERR and flush both queues, each in posting order; does nothing in ERR."""
        if not self.alive:
            return
        old, self.state = self.state, QPState.IBV_QPS_ERR
        self.device.emit(QPStateChange(self.qp_num, old, self.state))
        self.requester.flush()
        self.responder.flush()

    # ------------------------------------------------------------------ work

    def post_send(self, wr: SendWR) -> None:
        """Queue a send work request (``ibv_post_send``).

        Raises :class:`QPError` in RESET, INIT and RTR, for a full queue, and for a request that no
        adapter takes (too many elements, inline data on a READ or atomic).  In ERR it completes at
        once with IBV_WC_WR_FLUSH_ERR.
        """
        if wr.bind_mw is not None and wr.bind_mw.mw.type is MWType.IBV_MW_TYPE_1:
            raise QPError(f"{wr.bind_mw.mw!r}: a window of type 1 is bound by bind_mw()")
        self._post(wr)

    def _post(self, wr: SendWR) -> None:
        if not ABILITIES[self.state].post_send:
            raise QPError(f"QP {self.qp_num:#x} is in {self.state.name}: no sends can be posted")
        self.requester.post(wr)
        if not self.alive:
            self.requester.flush()

    def bind_mw(
        self,
        mw: MemoryWindow,
        wr_id: int,
        info: BindInfo,
        flags: SendFlags = SendFlags.IBV_SEND_SIGNALED,
    ) -> int:
        """Post a bind of a window of type 1 (``ibv_bind_mw``); its new rkey, chosen here.

        The key opens ``info`` when the request completes; a length of 0 closes the window.  Raises
        :class:`QPError` as :meth:`post_send`, and for a window of type 2.
        """
        if mw.type is not MWType.IBV_MW_TYPE_1:
            raise QPError(f"{mw!r}: a window of type 2 is bound by IBV_WR_BIND_MW")
        rkey = mw.rkey & ~0xFF | mw.rkey + 1 & 0xFF
        bind = BindMW(mw, rkey, info)
        self._post(SendWR(wr_id, WROpcode.IBV_WR_BIND_MW, (), flags, bind_mw=bind))
        mw.rkey = rkey
        return rkey

    def post_recv(self, wr: RecvWR) -> None:
        """Queue a receive (``ibv_post_recv``); raises :class:`QPError` in RESET or when full."""
        if not ABILITIES[self.state].post_recv:
            raise QPError(f"QP {self.qp_num:#x} is in {self.state.name}: no receives can be posted")
        if self.init_attr.srq is not None:
            raise QPError(f"QP {self.qp_num:#x} takes its receives from an SRQ: post them there")
        cap = self.init_attr.cap
        if len(self.responder.receives) >= cap.max_recv_wr:
            raise QPError(f"receive queue full: max_recv_wr is {cap.max_recv_wr}")
        if len(wr.sg_list) > cap.max_recv_sge:
            raise QPError(f"{len(wr.sg_list)} elements: max_recv_sge is {cap.max_recv_sge}")
        check_numbers(wr)
        self.responder.receives.append(wr)
        if not self.alive:
            self.responder.flush()

    def complete_send(self, completion: WC) -> None:
        """Give a completion to the send CQ."""
        self._complete(self.init_attr.send_cq, completion)

    def complete_receive(self, completion: WC, *, solicited: bool = False) -> None:
        """Give a completion to the receive CQ."""
        self._complete(self.init_attr.recv_cq, completion, solicited=solicited)

    def _complete(self, cq: CompletionQueue, completion: WC, *, solicited: bool = False) -> None:
        if cq.overrun:
            return
        if cq.push(completion):
            if cq.notifies(completion, solicited=solicited):
                self.device.emit(CompletionEvent(cq))
            return
        # Class G: nothing can be reported on the queue any more, and no NAK is sent.
        self.device.emit(AsyncEvent(AsyncEventType.IBV_EVENT_CQ_ERR, self.qp_num))
        for qp in self.device.qps.values():
            if qp.uses(cq) and qp.alive and qp.state is not QPState.IBV_QPS_RESET:
                self.device.emit(AsyncEvent(AsyncEventType.IBV_EVENT_QP_FATAL, qp.qp_num))
                qp.enter_error()

    def uses(self, cq: CompletionQueue) -> bool:
        """Whether completions of this queue pair go to ``cq``."""
        return cq is self.init_attr.send_cq or cq is self.init_attr.recv_cq

    # ------------------------------------------------------------------ packets

    def receive(self, packet: Packet, info: OpcodeInfo, datagram: Datagram, now: float) -> None:
        """Take one packet that is addressed to this queue pair and comes from its peer."""
        abilities = ABILITIES[self.state]
        if not (abilities.requests if info.is_request else abilities.responses):
            detail = f"{info.name} for QP {self.qp_num:#x} in {self.state.name}"
            self.device.drop("state", detail, datagram, packet.bth)
        elif info.is_request:
            self._first_contact()
            self.responder.receive(packet, info, datagram)
        else:
            self.requester.receive(packet, info, now)

    def reserved_opcode(self, psn: int) -> bool:
        """A reserved RC opcode came: True if it was answered (Invalid Request)."""
        if not ABILITIES[self.state].requests:
            return False
        return self.responder.reserved_opcode(psn)

    def _first_contact(self) -> None:
        """A request came: it stands for an RTU, and a queue pair in RTR tells ([IBTA] 12.9.6)."""
        if self._established:
            return
        self._established = True
        self.device.cm.connection_established(self)
        if self.state is QPState.IBV_QPS_RTR:
            self.device.emit(AsyncEvent(AsyncEventType.IBV_EVENT_COMM_EST, self.qp_num))

    def transmit(self, now: float) -> list[bytes]:
        """Packets to send now, replies first; empty when there is nothing (more) to do."""
        packets = self.responder.transmit(BURST)
        if ABILITIES[self.state].transmits and len(packets) < BURST:
            packets += self.requester.transmit(now, BURST - len(packets))
        return packets


def _names(mask: QPAttrMask) -> str:
    return ", ".join(bit.name or str(int(bit)) for bit in QPAttrMask if mask & bit)
