"""The asyncio shell of a device: moves datagrams, keeps one timer, tells what happened.

It holds everything that the core must not know: sockets, the clock, the ICRC of what leaves and
comes, and the capture.  Datagrams arrive through asyncio-dgram on one socket; they leave from
plain sockets, for a stream would not tell an ICMP error at once (:mod:`rocemu.net.senders`).
"""

import asyncio
import random
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Self

import asyncio_dgram

from rocemu.capture import EndpointCapture
from rocemu.net.faults import FaultLine, Passing
from rocemu.net.rules import Direction, FaultRule
from rocemu.net.senders import CE, Senders
from rocemu.net.sockets import bind_receiver
from rocemu.protection import KeyGenerator
from rocemu.transport import (
    SPEC,
    WC,
    CompletionQueue,
    Datagram,
    Device,
    Drop,
    Event,
    PacketLook,
    Profile,
    Violation,
)
from rocemu.verbs import QPState
from rocemu.wire import BTH, ICRC_SIZE, Flow, IcrcMatch, verify

__all__ = ["IcrcPolicy", "Nic"]

_SMALLEST = BTH.SIZE + ICRC_SIZE
#: Largest UDP payload that is taken in one piece; asyncio would allocate 256 KiB for each receive.
_LARGEST = 9216
_KNOWN_PEERS = 4096
#: Datagrams that are taken before what they led to is sent, and rounds of packets that are sent
#: before others (timers, signals, another NIC of this process) get their turn.
_BATCH, _ROUNDS = 64, 4
#: Completions are taken after every batch, so this is never reached.
_CQ_DEPTH = 1 << 20


class IcrcPolicy(StrEnum):
    """What to do about a wrong ICRC on what arrives."""

    VERIFY = "verify"
    """Drop the packet, as adapters do."""
    COUNT = "count"
    """Count it, and process the packet."""
    IGNORE = "ignore"
    """Do not even look."""


class Nic:
    """One RDMA NIC on the network: a :class:`Device` bound to UDP 4791 of an address.

    Use :meth:`open`, and ``async with`` or :meth:`close`.  After posting work directly on a queue
    pair call :meth:`pump`.  ``seed`` makes QPNs, PSNs and communication IDs repeat.
    """

    def __init__(
        self,
        address: str,
        *,
        seed: int | None = None,
        keys: KeyGenerator | None = None,
        icrc: IcrcPolicy = IcrcPolicy.VERIFY,
        capture: EndpointCapture | None = None,
        faults: Sequence[FaultRule] = (),
        profile: Profile = SPEC,
        look: PacketLook | None = None,
    ) -> None:
        self.address = address
        rng = None if seed is None else random.Random(seed)
        self.device = Device(address, rng=rng, keys=keys, profile=profile, look=look)
        self.cq: CompletionQueue = self.device.create_cq(_CQ_DEPTH)
        self.icrc = icrc
        self.capture = capture
        self._incoming = FaultLine(faults, Direction.RX, self.device, seed)
        self._outgoing = FaultLine(faults, Direction.TX, self.device, seed)
        self.on_event: list[Callable[[Event], None]] = []
        """Called with every event of the device, in order."""
        self.on_completion: dict[int, Callable[[WC], None]] = {}
        """By QP number: called with every completion of that queue pair on :attr:`cq`."""
        self.on_trouble: Callable[[str], None] = lambda sentence: None
        """Called once for each kind of send error and destination, with a sentence."""
        self.closed = False
        self._stream: Any = None
        self._receiver: asyncio.Task[None] | None = None
        self._senders = Senders(
            self.device,
            self._outgoing,
            on_sent=self._sent,
            on_news=self.pump,
            on_trouble=lambda sentence: self.on_trouble(sentence),
        )
        self._peers: dict[tuple[str, int], Flow] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._continuation: asyncio.Handle | None = None
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        seed: int | None = None,
        keys: KeyGenerator | None = None,
        icrc: IcrcPolicy = IcrcPolicy.VERIFY,
        capture: EndpointCapture | None = None,
        faults: Sequence[FaultRule] = (),
        profile: Profile = SPEC,
        look: PacketLook | None = None,
    ) -> Self:
        """A NIC that receives; raises NetError when UDP 4791 of ``address`` cannot be had."""
        nic = cls(
            address,
            seed=seed,
            keys=keys,
            icrc=icrc,
            capture=capture,
            faults=faults,
            profile=profile,
            look=look,
        )
        sock = bind_receiver(address)
        nic._stream = await asyncio_dgram.from_socket(sock)
        nic._stream._transport.max_size = _LARGEST  # no public way leads to the transport
        nic._receiver = asyncio.create_task(nic._receive(sock))
        return nic

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop receiving and close all sockets and the capture; safe to repeat.

        Work that is still posted completes with IBV_WC_WR_FLUSH_ERR; peers are not told.
        """
        self.closed = True
        for qp in self.device.qps.values():
            if qp.state is not QPState.IBV_QPS_RESET:
                qp.enter_error()
        self.tell_completions()
        for handle in (self._timer, self._continuation):
            if handle is not None:
                handle.cancel()
        if self._receiver is not None:
            self._receiver.cancel()
            await asyncio.wait([self._receiver])
            self._stream.close()
            await asyncio.sleep(0)  # the transport closes its socket in the next turn of the loop
        self._senders.close()
        if self.capture is not None:
            self.capture.close()

    # ------------------------------------------------------------------ in

    async def _receive(self, sock: socket.socket) -> None:
        """Take datagrams: asyncio brings one in each turn of its loop, the others are fetched."""
        while True:
            try:
                data, peer = await self._stream.recv()
            except OSError:
                continue  # the transport is as good as before, and asyncio-dgram told it once
            try:
                self._take(data, peer)
                with suppress(BlockingIOError):
                    for _ in range(_BATCH - 1):
                        self._take(*sock.recvfrom(_LARGEST))
                self.pump()
            except Exception as error:  # a bug, and shown as one; no peer may stop us by it
                self.loop.call_exception_handler({"message": "receiving", "exception": error})

    def _take(self, data: bytes, peer: tuple[str, int]) -> None:
        """One datagram from the socket; with faults it may become none, or several."""
        flow = self._flow_from(peer)
        if self._incoming.quiet:
            self._process(data, flow)
        else:
            for passing in self._incoming.put(data, flow, self.loop.time()):
                self._take_passing(passing)

    def _take_passing(self, passing: Passing) -> None:
        data, flow, comment = passing.datagram, passing.flow, passing.comment
        if not passing.lost:
            self._process(data, flow, tos=CE if passing.ce else None, fault=comment)
        elif self.capture is not None:
            self.capture.received(data, flow, 0, time.time_ns(), comment)

    def _process(
        self, data: bytes, flow: Flow, *, tos: int | None = None, fault: str | None = None
    ) -> None:
        """One datagram: ICRC, device, and everything that follows from it but sending."""
        when = time.time_ns()
        match, ip_id = IcrcMatch.EXACT, 0
        if len(data) >= _SMALLEST and self.icrc is not IcrcPolicy.IGNORE:
            match, ip_id = verify(data, flow)
            self.device.counters[f"icrc_{match.value}"] += 1
        datagram = Datagram(data[:-ICRC_SIZE], flow.source, self.address, flow.source_port, tos=tos)
        if len(data) < _SMALLEST:
            detail = f"{len(data)} bytes, BTH and ICRC alone are {_SMALLEST}"
            self.device.drop("short", detail, datagram)
        elif match is IcrcMatch.BAD and self.icrc is IcrcPolicy.VERIFY:
            bth = BTH.unpack(data)
            self.device.drop("icrc", "the ICRC is wrong", datagram, bth)
        else:
            self.device.receive([datagram], self.loop.time())
        comments = [text for text in (fault, self._tell_events(datagram)) if text]
        if self.capture is not None:
            self.capture.received(data, flow, ip_id, when, "; ".join(comments) or None, tos=tos)
        self.tell_completions()

    def _flow_from(self, peer: tuple[str, int]) -> Flow:
        key = (peer[0], peer[1])
        flow = self._peers.get(key)
        if flow is None:
            if len(self._peers) >= _KNOWN_PEERS:
                self._peers.clear()
            flow = Flow(peer[0].partition("%")[0], self.address, peer[1])
            self._peers[key] = flow
        return flow

    # ------------------------------------------------------------------ out

    def pump(self) -> None:
        """Send what is to be sent, tell what happened, set the timer; nothing when closed."""
        self._continuation = None
        if self.closed:
            return
        for _ in range(_ROUNDS):
            batches = self.device.to_send(self.loop.time())
            for flow, packets in batches:
                self._senders.send(flow, packets)
            self._tell_events(None)
            if not self.tell_completions() and not batches:
                break
        else:
            self._continuation = self.loop.call_soon(self.pump)
        if self.capture is not None:
            self.capture.flush()
        self._set_timer()

    def _sent(self, passing: Passing, when: int) -> None:
        if self.capture is not None:
            self.capture.sent(passing.datagram, passing.flow, 0, when, passing.comment)

    # ------------------------------------------------------------------ events and time

    def _tell_events(self, datagram: Datagram | None) -> str | None:
        """Hand all events on; gives the comment that they make on ``datagram``."""
        comment = None
        while (event := self.device.next_event()) is not None:
            if datagram is not None and isinstance(event, Violation | Drop):
                comment = _comment(event) if event.datagram is datagram else comment
            for listener in list(self.on_event):
                listener(event)
        return comment

    def tell_completions(self) -> bool:
        """Hand all completions on; True if there were any, for they may have led to new work."""
        told = False
        while completions := self.cq.poll(64):
            told = True
            for completion in completions:
                listener = self.on_completion.get(completion.qp_num)
                if listener is not None:
                    listener(completion)
        return told

    def _set_timer(self) -> None:
        lines = (self.device, self._incoming, self._outgoing)
        times = [when for line in lines if (when := line.next_timer()) is not None]
        due = min(times, default=None)
        if self._timer is not None:
            if due is not None and self._timer.when() <= due:
                return  # it fires early and sets itself again: cheaper than a new one every time
            self._timer.cancel()
        self._timer = None if due is None else self.loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self.loop.time()
        for passing in self._incoming.due(now):
            self._take_passing(passing)
        self.device.handle_timer(now)
        self._senders.send_due(now)
        self.pump()


def _comment(event: Violation | Drop) -> str:
    """What a capture says of the packet that an event is about."""
    if isinstance(event, Violation):
        return event.verdict.describe()
    return f"dropped: {event.reason}: {event.detail}"
