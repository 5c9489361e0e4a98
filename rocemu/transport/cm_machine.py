"""What connections do: the actions of the table in :mod:`rocemu.transport.cm_states`."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from rocemu.transport.cm_connection import CmConnection, to_error, to_rts
from rocemu.transport.cm_states import TRANSITIONS, CmAction, CmInput, CmState
from rocemu.transport.errors import QPError
from rocemu.transport.events import (
    ConnectFailed,
    ConnectRequest,
    Disconnected,
    Established,
    Rejected,
)
from rocemu.wire import (
    CmDrep,
    CmDreq,
    CmMessage,
    CmMra,
    CmRej,
    CmRep,
    CmReq,
    CmRtu,
    RejReason,
    build_mad,
)

if TYPE_CHECKING:
    from rocemu.transport.device import Device

__all__ = ["ConnectionMachine", "drep_for", "ids_of", "response_seconds"]

#: What an MRA promises for the application's decision: 4.096 us * 2^22 = 17 s.
_DECISION = 22


def response_seconds(code: int) -> float:
    """A CM response timeout, MRA service timeout or ACK timeout in seconds."""
    return 4.096e-6 * (1 << code)


class Ids(TypedDict):
    """The three numbers by which messages belong to a connection."""

    transaction_id: int
    local_comm_id: int
    remote_comm_id: int


def ids_of(connection: CmConnection) -> Ids:
    """As keyword arguments of a message."""
    return {
        "transaction_id": connection.transaction_id,
        "local_comm_id": connection.local_comm_id,
        "remote_comm_id": connection.remote_comm_id,
    }


def drep_for(dreq: CmDreq) -> CmDrep:
    """The answer to a DREQ, whether its connection is known or not."""
    return CmDrep(
        transaction_id=dreq.transaction_id,
        local_comm_id=dreq.remote_comm_id,
        remote_comm_id=dreq.local_comm_id,
    )


class ConnectionMachine:
    """All connections of a device, each moved by :meth:`step` alone."""

    def __init__(self, device: "Device", response_timeout: int, max_retries: int) -> None:
        self.device = device
        self.response_timeout = response_timeout
        self.max_retries = max_retries
        self.guid = device.rng.getrandbits(64)
        """Our CA GUID: any number that other devices do not have."""
        self.counters: Counter[str] = Counter()
        self.connections: dict[int, CmConnection] = {}
        """By local communication ID."""
        self.passive: dict[tuple[str, int], CmConnection] = {}
        """Those that a REQ made, by the peer's address and communication ID."""
        self._actions: dict[CmAction, Callable[[CmConnection, Any, float], CmState | None]] = {
            action: getattr(self, f"_{action.name.lower()}") for action in CmAction
        }

    def new_id(self) -> int:
        """A communication ID that no connection has."""
        while True:
            comm_id = self.device.rng.getrandbits(32)
            if comm_id and comm_id not in self.connections:
                return comm_id

    def new_transaction(self, comm_id: int) -> int:
        """A transaction ID of an exchange that we begin."""
        return self.device.rng.getrandbits(32) << 32 | comm_id

    def add(self, connection: CmConnection) -> None:
        self.connections[connection.local_comm_id] = connection
        if not connection.active:
            self.passive[connection.peer_address, connection.remote_comm_id] = connection

    @staticmethod
    def takes(connection: CmConnection, what: CmInput) -> bool:
        """Whether the connection's state has a step for it."""
        return (connection.state, what) in TRANSITIONS

    def step(
        self, connection: CmConnection, what: CmInput, now: float, message: Any = None
    ) -> None:
        """Do what the table says; what is not in it is counted and changes nothing."""
        step = TRANSITIONS.get((connection.state, what))
        if step is None:
            self.counters["late"] += 1
            return
        found = (
            None if step.action is None else self._actions[step.action](connection, message, now)
        )
        self._enter(connection, found or step.state, now)

    def _enter(self, connection: CmConnection, state: CmState, now: float) -> None:
        if state is connection.state:
            return
        connection.state = state
        if state in (CmState.REQ_RCVD, CmState.ESTABLISHED, CmState.CLOSED):
            connection.deadline = None
        elif state in (CmState.REJ_SENT, CmState.TIMEWAIT):
            # Long enough for what the peer repeats after its first timeout.
            connection.deadline = now + 2 * response_seconds(self.response_timeout)
            connection.tries_left = 0
        if state is CmState.CLOSED:
            self.connections.pop(connection.local_comm_id, None)
            self.passive.pop((connection.peer_address, connection.remote_comm_id), None)

    def handle_timer(self, now: float) -> None:
        """Repeat what was not answered, give up what was repeated enough, forget what is over."""
        for connection in list(self.connections.values()):
            if connection.deadline is None or connection.deadline > now:
                continue
            if connection.tries_left:
                connection.tries_left -= 1
                connection.deadline = now + response_seconds(self.response_timeout)
                self.step(connection, CmInput.TIMEOUT, now)
            else:
                self.step(connection, CmInput.EXHAUSTED, now)

    def send(self, destination: str, message: CmMessage) -> None:
        """Send a message that belongs to no connection, or is not to be repeated."""
        self.device.send_mad(destination, build_mad(message))

    # ------------------------------------------------------------------ actions: sending

    def _send(self, connection: CmConnection, message: CmMessage, now: float) -> None:
        connection.last = build_mad(message)
        self.device.send_mad(connection.peer_address, connection.last)

    def _send_and_wait(self, connection: CmConnection, message: CmMessage, now: float) -> None:
        self._send(connection, message, now)
        connection.tries_left = self.max_retries
        connection.deadline = now + response_seconds(self.response_timeout)

    def _resend(self, connection: CmConnection, message: object, now: float) -> None:
        self.device.send_mad(connection.peer_address, connection.last)

    def _work_on(self, connection: CmConnection, req: CmReq, now: float) -> None:
        mra = CmMra(**ids_of(connection), message=0, service_timeout=_DECISION)
        self.send(connection.peer_address, mra)

    def _wait(self, connection: CmConnection, mra: CmMra, now: float) -> None:
        wait = response_seconds(mra.service_timeout) + response_seconds(self.response_timeout)
        connection.deadline = now + wait

    # ------------------------------------------------------------------ actions: connecting

    def _offer(self, connection: CmConnection, req: CmReq, now: float) -> None:
        tries = req.max_cm_retries + 1
        wait = response_seconds(req.remote_cm_response_timeout)
        connection.copies_until = now + tries * wait
        self.device.emit(ConnectRequest(connection))

    def _complete(self, connection: CmConnection, rep: CmRep, now: float) -> CmState | None:
        assert connection.qp is not None
        connection.remote_comm_id = rep.local_comm_id
        connection.remote_qpn = rep.local_qpn
        connection.private_data = rep.private_data
        connection.sq_psn = rep.starting_psn
        # What the peer may have outstanding we must serve, and the other way round.
        connection.responder_resources = min(connection.responder_resources, rep.initiator_depth)
        connection.initiator_depth = min(connection.initiator_depth, rep.responder_resources)
        connection.rnr_retry = min(connection.rnr_retry, rep.rnr_retry_count)
        try:
            to_rts(connection.qp, connection)
        except QPError as error:  # the application did something else with it meanwhile
            self._reject(connection, RejReason.CONSUMER_DEFINED, message=1)
            self.device.emit(ConnectFailed(connection, str(error)))
            return CmState.TIMEWAIT
        self._send(connection, CmRtu(**ids_of(connection)), now)
        self.device.emit(Established(connection))
        return None

    def _establish(self, connection: CmConnection, message: object, now: float) -> None:
        self.device.emit(Established(connection))

    def _note_stale(self, connection: CmConnection, rej: CmRej, now: float) -> None:
        connection.stale = True

    def _doubt(self, connection: CmConnection, req: CmReq, now: float) -> CmState | None:
        if now < connection.copies_until:
            self.counters["late"] += 1
            return None
        self.refuse(connection.peer_address, req, RejReason.STALE_CONNECTION)
        self.step(connection, CmInput.DISCONNECT, now)
        return connection.state

    def refuse(self, source: str, req: CmReq, reason: RejReason, info: bytes = b"") -> None:
        """REJ to a REQ that makes no connection."""
        rej = CmRej(
            transaction_id=req.transaction_id,
            remote_comm_id=req.local_comm_id,
            reason=reason,
            info=info,
            info_length=len(info),
        )
        self.counters["refused"] += 1
        self.send(source, rej)

    # ------------------------------------------------------------------ actions: ending

    def _reject(self, connection: CmConnection, reason: RejReason, message: int) -> None:
        # The GUID makes a timeout's REJ known to a peer that has no ID of ours yet.
        guid = self.guid.to_bytes(8, "big") if reason is RejReason.TIMEOUT else b""
        rej = CmRej(
            **ids_of(connection), message=message, reason=reason, info=guid, info_length=len(guid)
        )
        self._send(connection, rej, 0.0)

    def _refuse_rep(self, connection: CmConnection, rep: CmRep, now: float) -> None:
        self.refuse_rep(connection.peer_address, rep)

    def refuse_rep(self, source: str, rep: CmRep) -> None:
        """REJ to a REP that answers no REQ of ours (any more)."""
        rej = CmRej(
            transaction_id=rep.transaction_id,
            local_comm_id=rep.remote_comm_id,
            remote_comm_id=rep.local_comm_id,
            message=1,
            reason=RejReason.INVALID_COMM_ID,
        )
        self.send(source, rej)

    def _rejected(self, connection: CmConnection, rej: CmRej, now: float) -> None:
        to_error(connection)
        self.device.emit(Rejected(connection, rej.reason, rej.private_data))

    def _fail(self, connection: CmConnection, message: object, now: float) -> None:
        to_error(connection)
        self._reject(connection, RejReason.TIMEOUT, message=2)
        tries = self.max_retries + 1
        peer = connection.peer_address
        if connection.stale:
            self.device.emit(Rejected(connection, RejReason.STALE_CONNECTION, b""))
        elif connection.active:
            why = f"no answer from {peer} port {connection.port} after {tries} tries"
            self.device.emit(ConnectFailed(connection, why))
        else:
            self.device.emit(ConnectFailed(connection, f"no RTU from {peer} after {tries} tries"))

    def _fail_unreachable(self, connection: CmConnection, message: object, now: float) -> None:
        to_error(connection)
        why = f"nobody listens on UDP 4791 at {connection.peer_address}"
        self.device.emit(ConnectFailed(connection, why))

    def _cancel(self, connection: CmConnection, message: object, now: float) -> None:
        to_error(connection)
        timeout = connection.state is CmState.REQ_SENT
        reason = RejReason.TIMEOUT if timeout else RejReason.CONSUMER_DEFINED
        self._reject(connection, reason, message=0 if connection.state is CmState.REQ_RCVD else 2)
        self.device.emit(Disconnected(connection))

    def _send_dreq(self, connection: CmConnection, message: object, now: float) -> None:
        to_error(connection)
        dreq = CmDreq(
            transaction_id=self.new_transaction(connection.local_comm_id),
            local_comm_id=connection.local_comm_id,
            remote_comm_id=connection.remote_comm_id,
            remote_qpn=connection.remote_qpn,
        )
        self._send_and_wait(connection, dreq, now)

    def _answer_dreq(self, connection: CmConnection, dreq: CmDreq, now: float) -> None:
        self.send(connection.peer_address, drep_for(dreq))
        self._leave(connection, dreq, now)

    def _leave(self, connection: CmConnection, message: object, now: float) -> None:
        to_error(connection)
        self.device.emit(Disconnected(connection))
