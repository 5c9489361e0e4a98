"""The RDMA connection manager for RC ([IBTA] chapter 12, Annex A11), without socket or clock.

What a connection does on which message is the table in :mod:`rocemu.transport.cm_states`, how it
does it is :mod:`rocemu.transport.cm_machine`; here are the application's calls, and what is
answered where there is no connection.  Nothing that comes from the network raises.
"""

from collections import Counter
from ipaddress import ip_address
from typing import TYPE_CHECKING

from rocemu.transport.cm_connection import CmConnection, CmError, to_init, to_rts
from rocemu.transport.cm_machine import ConnectionMachine, drep_for, ids_of
from rocemu.transport.cm_states import CmInput, CmState
from rocemu.transport.datagram import Datagram
from rocemu.verbs import MTU, AccessFlags
from rocemu.wire import (
    CM_CLASS_VERSION,
    MAD_SIZE,
    CmDrep,
    CmDreq,
    CmMessage,
    CmMra,
    CmRej,
    CmRep,
    CmReply,
    CmReq,
    CmRtu,
    IpCmHeader,
    MadHeader,
    RejReason,
    WireError,
    gid_of,
    parse_mad,
    service_id,
    service_port,
)

if TYPE_CHECKING:
    from rocemu.transport.device import Device
    from rocemu.transport.qp import QueuePair

__all__ = ["CmConnection", "CmError", "CmState", "ConnectionManager"]

#: The kernel's target ACK delay: 4.096 us * 2^15 = 134 ms.
_TARGET_ACK_DELAY = 15
#: 4.096 us * 2^16 = 268 ms: a peer in software may be held up that long.
_ACK_TIMEOUT = 16
#: Bytes of private data that are the application's.
_ROOM = {CmReq: 56, CmRep: 196, CmRej: 148}
_LIVE = CmState.REP_SENT, CmState.ESTABLISHED, CmState.DREQ_SENT
_INPUTS: dict[type[CmMessage], CmInput] = {
    CmRep: CmInput.REP,
    CmRtu: CmInput.RTU,
    CmRej: CmInput.REJ,
    CmMra: CmInput.MRA,
    CmDreq: CmInput.DREQ,
    CmDrep: CmInput.DREP,
}


class ConnectionManager:
    """Connects a device's RC queue pairs with MADs from QP 1 to QP 1.

    ``response_timeout`` is how long an answer may take, 4.096 us * 2^n, and ``max_retries`` how
    often a REQ, REP or DREQ is repeated then: 17 and 7 give up after 4.3 seconds (the kernel, with
    20 and 15, after more than a minute).
    """

    def __init__(
        self, device: "Device", *, response_timeout: int = 17, max_retries: int = 7
    ) -> None:
        self._device = device
        self._machine = ConnectionMachine(device, response_timeout, max_retries)
        self._backlogs: dict[int, int] = {}

    @property
    def counters(self) -> Counter[str]:
        """Messages that changed nothing, by why.

        ``mad`` (not readable), ``refused`` (REQs that drew a REJ), ``unknown`` (no such connection
        of that peer), ``late`` (nothing that the connection's state waits for).
        """
        return self._machine.counters

    @property
    def connections(self) -> tuple[CmConnection, ...]:
        """All that are not forgotten yet, oldest first."""
        return tuple(self._machine.connections.values())

    # ------------------------------------------------------------------ the application's calls

    def listen(self, port: int, backlog: int = 128) -> None:
        """Take REQs for ``port``, at most ``backlog`` undecided ones at a time."""
        if not 0 < port < 1 << 16:
            raise CmError(f"port {port}: allowed are 1 to 65535")
        if port in self._backlogs:
            raise CmError(f"port {port} is listened on already")
        self._backlogs[port] = backlog

    def connect(
        self,
        qp: "QueuePair",
        address: str,
        port: int,
        private_data: bytes = b"",
        *,
        access: AccessFlags,
        now: float,
        path_mtu: MTU = MTU.IBV_MTU_1024,
        responder_resources: int = 16,
        initiator_depth: int = 16,
        retry_count: int = 7,
        rnr_retry: int = 7,
        ack_timeout: int = _ACK_TIMEOUT,
        min_rnr_timer: int = 0,
    ) -> CmConnection:
        """Send a REQ; ends with Established, Rejected or ConnectFailed.

        The queue pair, in RESET or INIT, goes to INIT with ``access`` now and to RTS on REP.  The
        REP may lower the depths and ``rnr_retry``; path MTU, timeout and retry counts go for the
        peer's queue pair too.  Raises CmError for more than 56 bytes of private data, QPError for a
        queue pair in another state, ValueError for a value or address that is none.
        """
        machine, rng = self._machine, self._device.rng
        _check_room(CmReq, private_data)
        peer = str(ip_address(address))
        source_port = rng.randrange(0xC000, 0x10000)
        ip_header = IpCmHeader.between(self._device.address, source_port, peer)
        comm_id = machine.new_id()
        connection = CmConnection(
            active=True,
            peer_address=peer,
            port=port,
            source_port=source_port,
            local_comm_id=comm_id,
            qp=qp,
            path_mtu=path_mtu,
            responder_resources=responder_resources,
            initiator_depth=initiator_depth,
            retry_count=retry_count,
            rnr_retry=rnr_retry,
            ack_timeout=ack_timeout,
            min_rnr_timer=min_rnr_timer,
            flow_label=rng.getrandbits(20),
            rq_psn=rng.getrandbits(24),
            transaction_id=machine.new_transaction(comm_id),
        )
        req = CmReq(
            transaction_id=connection.transaction_id,
            local_comm_id=comm_id,
            service_id=service_id(port),
            local_ca_guid=machine.guid,
            local_qpn=qp.qp_num,
            responder_resources=responder_resources,
            initiator_depth=initiator_depth,
            remote_cm_response_timeout=machine.response_timeout,
            local_cm_response_timeout=machine.response_timeout,
            starting_psn=connection.rq_psn,
            retry_count=retry_count,
            rnr_retry_count=rnr_retry,
            max_cm_retries=machine.max_retries,
            path_mtu=path_mtu,
            primary_local_gid=gid_of(self._device.address),
            primary_remote_gid=gid_of(peer),
            primary_flow_label=connection.flow_label,
            primary_local_ack_timeout=ack_timeout,
            private_data=ip_header.pack() + private_data,
        )
        req.pack()  # a value that does not fit raises before anything has changed
        to_init(qp, access)
        machine.add(connection)
        machine.step(connection, CmInput.CONNECT, now, req)
        return connection

    def accept(
        self,
        connection: CmConnection,
        qp: "QueuePair",
        private_data: bytes = b"",
        *,
        access: AccessFlags,
        now: float,
        responder_resources: int = 16,
        initiator_depth: int = 16,
        rnr_retry: int = 7,
        min_rnr_timer: int = 0,
    ) -> None:
        """Answer a ConnectRequest with REP; ends with Established, Rejected or ConnectFailed.

        The queue pair, in RESET or INIT, is in RTS before the REP leaves.  Depths are the smaller
        of ours and the peer's; path MTU, timeout and retry counts are the REQ's, ``rnr_retry`` is
        for the peer's requester.  Raises CmError for a connection that does not wait for this (its
        peer may have given up) or more than 196 bytes, QPError for a queue pair in another state,
        ValueError for a value that is none; the connection still waits then.
        """
        self._check_undecided(connection, CmRep, private_data)
        connection.responder_resources = min(responder_resources, connection.responder_resources)
        connection.initiator_depth = min(initiator_depth, connection.initiator_depth)
        connection.min_rnr_timer = min_rnr_timer
        connection.rq_psn = self._device.rng.getrandbits(24)
        rep = CmRep(
            **ids_of(connection),
            local_qpn=qp.qp_num,
            starting_psn=connection.rq_psn,
            responder_resources=connection.responder_resources,
            initiator_depth=connection.initiator_depth,
            target_ack_delay=_TARGET_ACK_DELAY,
            rnr_retry_count=rnr_retry,
            local_ca_guid=self._machine.guid,
            private_data=private_data,
        )
        rep.pack()  # as in connect
        to_init(qp, access)
        to_rts(qp, connection)
        connection.qp = qp
        self._machine.step(connection, CmInput.ACCEPT, now, rep)

    def reject(
        self,
        connection: CmConnection,
        reason: int = RejReason.CONSUMER_DEFINED,
        private_data: bytes = b"",
        *,
        now: float,
    ) -> None:
        """Answer a ConnectRequest with REJ; raises CmError as ``accept`` does (148 bytes)."""
        self._check_undecided(connection, CmRej, private_data)
        rej = CmRej(**ids_of(connection), reason=reason, private_data=private_data)
        self._machine.step(connection, CmInput.REJECT, now, rej)

    def disconnect(self, connection: CmConnection, *, now: float) -> None:
        """Queue pair to ERR and DREQ; ends with Disconnected.

        A connection that is not established yet is given up; nothing happens to one that is over.
        """
        if self._machine.takes(connection, CmInput.DISCONNECT):
            self._machine.step(connection, CmInput.DISCONNECT, now)

    @staticmethod
    def _check_undecided(
        connection: CmConnection, kind: type[CmMessage], private_data: bytes
    ) -> None:
        if connection.state is not CmState.REQ_RCVD:
            why = f"the request of {connection.peer_address} is not open: {connection.state.name}"
            raise CmError(why)
        _check_room(kind, private_data)

    # ------------------------------------------------------------------ what the device tells

    def connection_established(self, qp: "QueuePair") -> None:
        """The queue pair got its first packet (COMM_EST): that replaces an RTU."""
        for connection in self.connections:
            if connection.qp is qp and self._machine.takes(connection, CmInput.COMM_EST):
                self._machine.step(connection, CmInput.COMM_EST, 0.0)

    def unreachable(self, address: str) -> None:
        """No process has UDP port 4791 at ``address``: what waits for an answer from there ends."""
        for connection in self.connections:
            waits = self._machine.takes(connection, CmInput.UNREACHABLE)
            if connection.peer_address == address and waits:
                self._machine.step(connection, CmInput.UNREACHABLE, 0.0)

    def next_timer(self) -> float | None:
        """When :meth:`handle_timer` is due, None for never."""
        deadlines = (connection.deadline for connection in self.connections)
        return min((when for when in deadlines if when is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Repeat what was not answered, give up what was repeated enough, forget what is over."""
        self._machine.handle_timer(now)

    def receive(self, mad: bytes, datagram: Datagram, now: float) -> None:
        """Take the payload of a UD SEND Only to QP 1; any bytes will do."""
        try:
            message = parse_mad(mad)
        except WireError:
            self._receive_unreadable(mad, datagram)
            return
        if isinstance(message, CmReq):
            self._receive_req(message, datagram, now)
        elif isinstance(message, CmReply):
            self._receive_reply(message, datagram, now)

    def _receive_unreadable(self, mad: bytes, datagram: Datagram) -> None:
        """Count it; a REQ of another class version is told which one we speak."""
        self.counters["mad"] += 1
        if len(mad) != MAD_SIZE:
            return
        header = MadHeader.unpack(mad)
        if header.class_version == CM_CLASS_VERSION:
            return
        header.class_version = CM_CLASS_VERSION
        try:
            message = parse_mad(header.pack() + mad[MadHeader.SIZE :])
        except WireError:
            return
        if isinstance(message, CmReq):
            version = bytes((CM_CLASS_VERSION,))
            reason = RejReason.INVALID_CLASS_VERSION
            self._machine.refuse(datagram.source, message, reason, version)

    def _receive_reply(self, message: CmReply, datagram: Datagram, now: float) -> None:
        machine = self._machine
        connection = self._connection_of(message, datagram)
        what = _INPUTS[type(message)]
        if isinstance(message, CmRej) and message.reason == RejReason.STALE_CONNECTION:
            what = CmInput.STALE
        # A DREQ is answered in every state, and where there is no connection.
        if isinstance(message, CmDreq) and not (connection and machine.takes(connection, what)):
            machine.send(datagram.source, drep_for(message))
        if connection is not None:
            machine.step(connection, what, now, message)
            return
        self.counters["unknown"] += 1
        if isinstance(message, CmRep):
            machine.refuse_rep(datagram.source, message)

    def _connection_of(self, message: CmReply, datagram: Datagram) -> CmConnection | None:
        """The connection that a message is about, if it comes from that connection's peer."""
        connection = self._machine.connections.get(message.remote_comm_id)
        early = isinstance(message, CmRej) and 0 in (message.remote_comm_id, message.local_comm_id)
        if connection is None and early:  # the peer gave up before it knew our ID
            connection = self._machine.passive.get((datagram.source, message.local_comm_id))
        if connection is None or datagram.source != connection.peer_address:
            return None
        known, qp = connection.remote_comm_id, connection.qp
        if known and message.local_comm_id != known and not early:
            return None
        if isinstance(message, CmDreq) and qp is not None and message.remote_qpn != qp.qp_num:
            return None
        return connection

    def _receive_req(self, req: CmReq, datagram: Datagram, now: float) -> None:
        source = datagram.source
        known = self._machine.passive.get((source, req.local_comm_id))
        if known is not None:
            self._machine.step(known, CmInput.REQ, now, req)
            return
        ip_header = IpCmHeader.unpack(req.private_data)
        port = service_port(req.service_id) or 0
        reason = self._refusal(req, ip_header, port) or self._stale(req, source, now)
        if reason is not None:
            self._machine.refuse(source, req, reason)
            return
        connection = CmConnection(
            active=False,
            peer_address=source,
            port=port,
            source_port=ip_header.source_port,
            local_comm_id=self._machine.new_id(),
            remote_comm_id=req.local_comm_id,
            remote_qpn=req.local_qpn,
            private_data=req.private_data[IpCmHeader.SIZE :],
            path_mtu=MTU(req.path_mtu),
            responder_resources=req.initiator_depth,
            initiator_depth=req.responder_resources,
            retry_count=req.retry_count,
            rnr_retry=req.rnr_retry_count,
            ack_timeout=req.primary_local_ack_timeout or _ACK_TIMEOUT,
            flow_label=req.primary_flow_label,
            sq_psn=req.starting_psn,
            transaction_id=req.transaction_id,
        )
        self._machine.add(connection)
        self._machine.step(connection, CmInput.REQ, now, req)

    def _refusal(self, req: CmReq, ip_header: IpCmHeader, port: int) -> RejReason | None:
        """Why a REQ cannot become a connection, whoever sent it."""
        if port not in self._backlogs:
            return RejReason.INVALID_SERVICE_ID
        if req.transport_type:
            return RejReason.INVALID_TRANSPORT_TYPE
        if ip_header.cma_version or ip_header.ip_version not in (4, 6):
            return RejReason.UNSUPPORTED
        if req.path_mtu not in list(MTU):
            return RejReason.INVALID_MTU
        undecided = [c for c in self.connections if c.state is CmState.REQ_RCVD and c.port == port]
        if len(undecided) >= self._backlogs[port]:
            return RejReason.NO_RESOURCES
        return None

    def _stale(self, req: CmReq, source: str, now: float) -> RejReason | None:
        """A new REQ from a queue pair that we hold a connection with: its owner forgot the old one.

        The old one is taken down; the peer may try again when that is done ([IBTA] 12.9.8.3.1).
        """
        old = [
            connection
            for connection in self.connections
            if (connection.peer_address, connection.remote_qpn) == (source, req.local_qpn)
            and connection.state in _LIVE
        ]
        for connection in old:
            self.disconnect(connection, now=now)
        return RejReason.STALE_CONNECTION if old else None


def _check_room(kind: type[CmMessage], private_data: bytes) -> None:
    if len(private_data) > _ROOM[kind]:
        name, room = kind.ATTRIBUTE.name, _ROOM[kind]
        raise CmError(f"private data of {len(private_data)} bytes: a {name} holds {room}")
