"""Datagrams sent from the command line, and what comes back: plain sockets, no device behind."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rocemu.net.sockets import NetError, bind_receiver, bind_sender, read_faults, set_ip_fields
from rocemu.wire import BTH, ICRC_SIZE, ROCE_PORT, Flow, IcrcMatch, verify

__all__ = ["Arrival", "OneShot", "source_for"]

_LARGEST = 65536


@dataclass(frozen=True, slots=True)
class Arrival:
    """A datagram that came to UDP 4791."""

    datagram: bytes
    """BTH to ICRC, or whatever it was."""
    flow: Flow
    """As it came: source is the sender."""
    match: IcrcMatch
    ip_id: int
    """The IP ID that the ICRC is right for; 0 where none was found."""


def source_for(destination: str) -> str:
    """The address of this host that the route to ``destination`` leaves from; raises NetError."""
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((destination, ROCE_PORT))
        except OSError as error:
            raise NetError(f"no way to {destination}: {error.strerror}") from error
        return str(sock.getsockname()[0])


class OneShot:
    """A sender from one source port of ``source``, and a receiver on UDP 4791 of it.

    ``port`` None takes the first free one from 49152 on.  Raises NetError when a port cannot be
    had.  A context manager.
    """

    def __init__(
        self,
        source: str,
        destination: str,
        *,
        port: int | None = None,
        tos: int = 0,
        ttl: int = 64,
        listen: bool = True,
    ) -> None:
        self._receiver = bind_receiver(source) if listen else None
        try:
            self._sender = bind_sender(source, port or 0xC000)
            taken = self._sender.getsockname()[1]
            if port not in (None, taken):
                self._sender.close()
                raise NetError(f"UDP port {port} of {source} is in use")
        except NetError:
            self._close_receiver()
            raise
        self._sender.setblocking(True)
        set_ip_fields(self._sender, tos, ttl)
        self.flow = Flow(source, destination, taken, tos=tos, ttl=ttl)
        """What the packets leave with; IP ID 0 and DF, as the ICRC needs to know."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._sender.close()
        self._close_receiver()

    def _close_receiver(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    def send(self, datagram: bytes) -> None:
        """Send as it is; raises NetError when it cannot leave or nobody listens there."""
        try:
            self._sender.sendto(datagram, (self.flow.destination, ROCE_PORT))
        except ConnectionRefusedError:
            raise self._nobody() from None
        except OSError as error:
            why = os.strerror(error.errno or 0)
            if error.errno == errno.EMSGSIZE:
                why = "more than the link's MTU has room for"
            where = self.flow.destination
            raise NetError(f"cannot send {len(datagram)} bytes to {where}: {why}") from error

    def arrivals(self, seconds: float) -> Iterator[Arrival]:
        """What comes to UDP 4791 in the next ``seconds``; raises NetError when nobody listens at
        the destination."""
        assert self._receiver is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._receiver, selectors.EVENT_READ)
            selector.register(self._sender, selectors.EVENT_READ)
            while (left := end - time.monotonic()) > 0:
                ready = [key.fileobj for key, _ in selector.select(left)]
                if self._receiver in ready and (arrival := self._receive(self._receiver)):
                    yield arrival
                if self._sender in ready:
                    self._check_faults()

    def _receive(self, sock: socket.socket) -> Arrival | None:
        try:
            datagram, peer = sock.recvfrom(_LARGEST)
        except BlockingIOError:  # its UDP checksum was wrong: the kernel took it away
            return None
        flow = Flow(peer[0].partition("%")[0], self.flow.source, peer[1])
        if len(datagram) < BTH.SIZE + ICRC_SIZE:
            return Arrival(datagram, flow, IcrcMatch.BAD, 0)
        return Arrival(datagram, flow, *verify(datagram, flow))

    def _check_faults(self) -> None:
        for fault in read_faults(self._sender):
            if fault.errno == errno.ECONNREFUSED:
                raise self._nobody()
        with suppress(OSError):  # answers go to 4791: what comes to a source port is not ours
            self._sender.recv(1, socket.MSG_DONTWAIT)

    def _nobody(self) -> NetError:
        return NetError(f"nobody listens on UDP port {ROCE_PORT} of {self.flow.destination}")
