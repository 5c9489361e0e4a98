"""The connection that a replay has: the connection manager's, or none but numbers.

Packets go through plain sockets, so that nothing but the capture decides what is sent; a device is
behind them only to shake hands (and to take leave) on QP 1.
"""

from __future__ import annotations

import time

from rocemu.net import NetError
from rocemu.net.connection import ALL_REMOTE
from rocemu.net.oneshot import Arrival, OneShot
from rocemu.net.sockets import checked_mtu
from rocemu.transport import (
    CmConnection,
    ConnectFailed,
    Datagram,
    Device,
    Disconnected,
    Established,
    Event,
    QPInitAttr,
    Rejected,
)
from rocemu.verbs import MTU
from rocemu.wire import (
    BTH,
    GSI_QPN,
    ICRC_SIZE,
    CmReq,
    IcrcMatch,
    IpCmHeader,
    Packet,
    WireError,
    parse,
    seal,
)

__all__ = ["CmLink", "Link"]

_LEAST = 1e-3
_GOODBYE = 1.0


class Link:
    """Sockets and the numbers of a connection; this one is made by nobody (static mode)."""

    def __init__(self, shot: OneShot, dest_qp: int, psn: int, own_qpn: int | None) -> None:
        self.shot = shot
        self.dest_qp = dest_qp
        self.psn = psn
        """What the responder expects first."""
        self.own_qpn = own_qpn
        """Whom answers must be for; None: anyone."""
        self.private_data = b""

    def receive(self, seconds: float) -> Packet | None:
        """The next answer with a right ICRC, None when none comes in ``seconds``."""
        end = time.monotonic() + seconds
        while True:
            left = max(end - time.monotonic(), _LEAST)
            arrival = next(self.shot.arrivals(left), None)
            if arrival is not None and (answer := self._answer_in(arrival)) is not None:
                return answer
            if time.monotonic() >= end:
                return None

    def _answer_in(self, arrival: Arrival) -> Packet | None:
        if arrival.match is IcrcMatch.BAD or arrival.flow.source != self.shot.flow.destination:
            return None
        dest_qp = BTH.unpack(arrival.datagram).dest_qp
        if dest_qp == GSI_QPN:
            self.take_mad(arrival)
            return None
        if self.own_qpn not in (None, dest_qp):
            return None
        try:
            packet = parse(arrival.datagram[:-ICRC_SIZE])
        except WireError:
            return None
        is_answer = not packet.info.is_request and packet.bth.opcode >> 5 == 0
        return packet if is_answer else None

    def take_mad(self, arrival: Arrival) -> None:
        """A message of the connection manager, which a static connection knows nothing of."""

    def close(self) -> None:
        """Nothing to take leave of."""


class CmLink(Link):
    """A connection by the connection manager, as its captured REQ asked for it where there is one.

    Raises :class:`NetError` when the peer does not answer, or rejects.
    """

    def __init__(self, shot: OneShot, port: int, req: CmReq | None) -> None:
        flow = shot.flow
        wanted = MTU(req.path_mtu) if req is not None and req.path_mtu in list(MTU) else None
        mtu = checked_mtu(flow.source, flow.destination, wanted)
        self._device = device = Device(flow.source)
        cq = device.create_cq()
        qp = device.create_qp(device.alloc_pd(), QPInitAttr(cq, cq))
        super().__init__(shot, 0, 0, qp.qp_num)
        self._cm = device.cm.connect(
            qp,
            flow.destination,
            port,
            b"" if req is None else req.private_data[IpCmHeader.SIZE :],
            access=ALL_REMOTE,
            now=time.monotonic(),
            path_mtu=mtu,
        )
        self._await(Established, Rejected, ConnectFailed)
        self.dest_qp = qp.attr.dest_qp_num
        self.psn = self._cm.sq_psn
        self.private_data = self._cm.private_data

    def _await(self, *kinds: type[Event], patience: float = 60.0) -> None:
        end = time.monotonic() + patience
        while time.monotonic() < end:
            self._send()
            while (event := self._device.next_event()) is not None:
                if isinstance(event, kinds):
                    self._send()
                    return _complain(event, self._cm)
            timer = self._device.next_timer()
            due = end if timer is None else min(timer, end)
            left = max(due - time.monotonic(), _LEAST)
            arrival = next(self.shot.arrivals(left), None)
            if arrival is not None:
                self._answer_in(arrival)
            self._device.handle_timer(time.monotonic())

    def _send(self) -> None:
        for _, packets in self._device.to_send(time.monotonic()):
            for packet in packets:
                self.shot.send(seal(packet, self.shot.flow, 0))

    def take_mad(self, arrival: Arrival) -> None:
        flow = arrival.flow
        datagram = Datagram(
            arrival.datagram[:-ICRC_SIZE], flow.source, flow.destination, flow.source_port
        )
        self._device.receive([datagram], time.monotonic())
        self._send()

    def close(self) -> None:
        """Take the connection down; a peer that does not answer is not waited for."""
        self._device.cm.disconnect(self._cm, now=time.monotonic())
        self._await(Disconnected, patience=_GOODBYE)


def _complain(event: Event, connection: CmConnection) -> None:
    where = f"{connection.peer_address}, CM port {connection.port}"
    if isinstance(event, ConnectFailed):
        raise NetError(f"{where}: {event.why}")
    if isinstance(event, Rejected):
        raise NetError(f"{where}: the connection is rejected, reason {event.reason}")
