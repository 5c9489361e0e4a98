"""The sockets that packets leave from: plain, unconnected, one a source port.

A batch goes out in one loop, without a task or a copy in between, and the sockets' error queues say
at once when nobody listens at the peer.
"""

import asyncio
import errno
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rocemu.net.faults import FaultLine, Passing
from rocemu.net.sockets import bind_sender, read_faults, set_ip_fields
from rocemu.transport import Device
from rocemu.wire import ROCE_PORT, Flow, seal

__all__ = ["CE", "Senders"]

#: Both ECN bits: congestion experienced.
CE = 3
#: Source ports with a socket of their own; each queue pair has one, so there may be many.
_MOST = 128
#: Datagrams that strangers sent to a source port, taken at a time.
_STRAYS = 64


@dataclass(slots=True)
class _Sender:
    """A socket that packets of one source port leave from."""

    sock: socket.socket
    wanted_port: int
    port: int
    """The port it has: the next free one when another process had the wanted one."""
    tos: int = 0
    ttl: int = 64
    blocked: bool = False
    """The kernel had no room; the loop watches for it."""
    backlog: deque[Passing] = field(default_factory=deque)
    """Sealed packets that wait to be sent; those that a fault took are only to be captured."""


class Senders:
    """Seals and sends the packets of a device.

    ``on_sent`` is called with each packet and its time (nanoseconds since 1970), ``on_news`` when
    an error queue had something to tell the device, ``on_trouble`` once for each kind of send error
    and destination.
    """

    def __init__(
        self,
        device: Device,
        faults: FaultLine,
        *,
        on_sent: Callable[[Passing, int], None],
        on_news: Callable[[], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._device = device
        self._faults = faults
        self._on_sent = on_sent
        self._on_news = on_news
        self._on_trouble = on_trouble
        self._loop = asyncio.get_running_loop()
        self._senders: dict[int, _Sender] = {}
        self._told: set[tuple[int, str]] = set()

    def __len__(self) -> int:
        """How many sockets there are."""
        return len(self._senders)

    def close(self) -> None:
        """Close all sockets; what waits is lost."""
        for sender in list(self._senders.values()):
            self._close(sender)

    def send(self, flow: Flow, packets: list[bytes]) -> None:
        """Give packets their ICRC and send them, as far as the kernel has room now."""
        try:
            sender = self._senders.get(flow.source_port) or self._add(flow.source_port)
        except OSError as error:
            self._tell_trouble(error, flow, 0)
            return
        if sender.port != flow.source_port:
            flow = replace(flow, source_port=sender.port)
        for packet in packets:
            sealed = seal(packet, flow)
            if self._faults.quiet:
                sender.backlog.append(Passing(sealed, flow))
            else:
                for passing in self._faults.put(sealed, flow, self._loop.time()):
                    _queue(passing, sender)
        if not sender.blocked:
            self._drain(sender)

    def send_due(self, now: float) -> None:
        """Send what faults held back until now, from the port that it was sealed for."""
        for passing in self._faults.due(now):
            port = passing.flow.source_port
            open_ones = [sender for sender in self._senders.values() if sender.port == port]
            try:
                sender = open_ones[0] if open_ones else self._add(port)
            except OSError as error:
                self._tell_trouble(error, passing.flow, len(passing.datagram))
                continue
            _queue(passing, sender)
            if not sender.blocked:
                self._drain(sender)

    def _add(self, port: int) -> _Sender:
        """A socket for a source port; with too many, the oldest that is not in use goes."""
        if len(self._senders) >= _MOST:
            idle = (sender for sender in self._senders.values() if not sender.backlog)
            if (oldest := next(idle, None)) is not None:
                self._close(oldest)
        sock = bind_sender(self._device.address, port)
        sender = _Sender(sock, port, sock.getsockname()[1])
        self._senders[port] = sender
        self._loop.add_reader(sock, self._readable, sender)
        return sender

    def _close(self, sender: _Sender) -> None:
        del self._senders[sender.wanted_port]
        self._loop.remove_reader(sender.sock)
        self._loop.remove_writer(sender.sock)
        sender.sock.close()

    def _drain(self, sender: _Sender) -> None:
        """Send the backlog as far as the kernel has room."""
        while sender.backlog:
            passing = sender.backlog[0]
            flow = passing.flow
            if (sender.tos, sender.ttl) != (flow.tos, flow.ttl):
                set_ip_fields(sender.sock, flow.tos, flow.ttl)
                sender.tos, sender.ttl = flow.tos, flow.ttl
            when = time.time_ns()  # before, or the peer's answer could seem to be older
            try:
                if not passing.lost:
                    sender.sock.sendto(passing.datagram, (flow.destination, ROCE_PORT))
            except BlockingIOError:
                if not sender.blocked:
                    sender.blocked = True
                    self._loop.add_writer(sender.sock, self._drain, sender)
                return
            except ConnectionRefusedError:
                continue  # about an earlier packet; the error queue has it, this one was not sent
            except OSError as error:
                self._tell_trouble(error, flow, len(passing.datagram))
            else:
                self._on_sent(passing, when)
            sender.backlog.popleft()
        if sender.blocked:
            sender.blocked = False
            self._loop.remove_writer(sender.sock)

    def _readable(self, sender: _Sender) -> None:
        """An ICMP error waits, or somebody sent to a source port."""
        for fault in read_faults(sender.sock):
            if fault.errno == errno.ECONNREFUSED:
                self._device.unreachable(fault.destination, self._loop.time())
        with suppress(OSError):
            for _ in range(_STRAYS):
                sender.sock.recv(1)
                self._device.counters["to_source_port"] += 1
        self._on_news()

    def _tell_trouble(self, error: OSError, flow: Flow, size: int) -> None:
        """A packet could not be sent; for the transport it is lost."""
        self._device.counters["send_error"] += 1
        number = error.errno or 0
        if (number, flow.destination) not in self._told:
            self._told.add((number, flow.destination))
            what = f"cannot send {size} bytes to {flow.destination}: {error.strerror or error}"
            if number == errno.EMSGSIZE:
                what += "; the path MTU is larger than the link's MTU has room for"
            self._on_trouble(what)


def _queue(passing: Passing, sender: _Sender) -> None:
    if passing.ce:
        passing.flow = replace(passing.flow, tos=passing.flow.tos | CE)
    sender.backlog.append(passing)
