"""Two connection managers joined in memory on virtual time, for the tests of RDMA-CM."""

import random
from collections.abc import Iterable
from typing import Any

from rocemu.transport import (
    CmConnection,
    ConnectRequest,
    Datagram,
    Device,
    Drop,
    Event,
    QPInitAttr,
    QueuePair,
)
from rocemu.verbs import AccessFlags, QPState
from rocemu.wire import (
    GSI_QKEY,
    CmMessage,
    CmReq,
    IpCmHeader,
    parse,
    parse_mad,
    service_id,
)

CLIENT, SERVER, PORT = "10.0.0.1", "10.0.0.2", 7174
READ_WRITE = AccessFlags.IBV_ACCESS_REMOTE_READ | AccessFlags.IBV_ACCESS_REMOTE_WRITE


def device(address: str, seed: int) -> Device:
    return Device(address, rng=random.Random(seed))


def queue_pair(owner: Device) -> QueuePair:
    cq = owner.create_cq()
    return owner.create_qp(owner.alloc_pd(), QPInitAttr(cq, cq))


class World:
    """A client and a server, what they sent each other, and what became of it.

    ``fates`` says for a message class how many copies of each instance arrive, in the order in
    which they were sent (``{CmReq: [0, 2]}``: the first REQ is lost, the second doubled); after
    that, and for other classes, each arrives once.  A server that ``serves`` accepts at once.
    """

    def __init__(
        self, fates: dict[type[CmMessage], Iterable[int]] | None = None, *, serves: bool = True
    ) -> None:
        self.now = 100.0
        self.client, self.server = device(CLIENT, 1), device(SERVER, 2)
        self.serves = serves
        self.fates = {kind: list(copies) for kind, copies in (fates or {}).items()}
        self.sent: list[CmMessage] = []
        self.events: dict[Device, list[Event]] = {self.client: [], self.server: []}
        self.server.cm.listen(PORT)

    def connect(self, private_data: bytes = b"", **options: Any) -> CmConnection:
        options.setdefault("access", READ_WRITE)
        connection = self.client.cm.connect(
            queue_pair(self.client), SERVER, PORT, private_data, now=self.now, **options
        )
        self.deliver()
        return connection

    def accept(self, private_data: bytes = b"", **options: Any) -> CmConnection:
        options.setdefault("access", READ_WRITE)
        connection = self.request()
        qp = queue_pair(self.server)
        self.server.cm.accept(connection, qp, private_data, now=self.now, **options)
        return connection

    def request(self) -> CmConnection:
        """The connection of the server's newest ConnectRequest."""
        self.collect()
        return [e for e in self.events[self.server] if isinstance(e, ConnectRequest)][-1].connection

    def collect(self) -> None:
        for owner, events in self.events.items():
            while event := owner.next_event():
                assert not isinstance(event, Drop)
                events.append(event)
                if isinstance(event, ConnectRequest) and self.serves:
                    qp = queue_pair(owner)
                    owner.cm.accept(event.connection, qp, access=READ_WRITE, now=self.now)

    def deliver(self) -> None:
        """Carry what both have to send until there is no more."""
        pending = True
        while pending:
            self.collect()
            pending = False
            for sender, receiver in (
                (self.client, self.server),
                (self.server, self.client),
            ):
                for flow, packets in sender.to_send(self.now):
                    assert (flow.source, flow.destination) == (sender.address, receiver.address)
                    for packet in packets:
                        pending = True
                        self._carry(packet, sender, receiver)

    def _carry(self, packet: bytes, sender: Device, receiver: Device) -> None:
        read = parse(packet)
        assert read.deth is not None
        assert (read.bth.dest_qp, read.deth.source_qp, read.deth.qkey) == (1, 1, GSI_QKEY)
        message = parse_mad(bytes(read.payload))
        self.sent.append(message)
        assert len(self.sent) < 500, "the two answer each other for ever"
        fates = self.fates.get(type(message))
        for _ in range(fates.pop(0) if fates else 1):
            receiver.receive([Datagram(packet, sender.address, receiver.address)], self.now)

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        end = self.now + seconds
        self.deliver()
        while True:
            due = [d.next_timer() for d in self.events]
            when = min((t for t in due if t is not None), default=None)
            if when is None or when > end:
                break
            self.now = max(self.now, when)
            for owner in self.events:
                owner.handle_timer(self.now)
                following = owner.next_timer()
                assert following is None or following > self.now, "a timer that stays due"
            self.deliver()
        self.now = end

    def count(self, owner: Device, kind: type[Event]) -> int:
        self.collect()
        return sum(isinstance(event, kind) for event in self.events[owner])

    def kinds(self) -> list[str]:
        return [type(message).ATTRIBUTE.name for message in self.sent]

    def only(self, owner: Device, kind: Any) -> Any:
        """The one event of a kind."""
        self.collect()
        (event,) = [event for event in self.events[owner] if isinstance(event, kind)]
        return event


def state_of(connection: CmConnection) -> QPState:
    assert connection.qp is not None
    return connection.qp.state


def req_of(**changes: Any) -> CmReq:
    values: dict[str, Any] = {
        "local_comm_id": 0xABC,
        "transaction_id": 0x123,
        "service_id": service_id(PORT),
        "local_qpn": 0x55,
        "path_mtu": 3,
        "max_cm_retries": 7,
        "remote_cm_response_timeout": 17,
        "private_data": IpCmHeader.between(CLIENT, 40000, SERVER).pack(),
    }
    return CmReq(**(values | changes))


def answers_to(owner: Device, mad: bytes, source: str = CLIENT, now: float = 0.0) -> list[Any]:
    """Give a device's CM a MAD; what it answers."""
    owner.cm.receive(mad, Datagram(b"", source, owner.address), now)
    answers = []
    for flow, packets in owner.to_send(now):
        assert flow.destination == source
        answers += [parse_mad(bytes(parse(packet).payload)) for packet in packets]
    return answers


def listener(backlog: int = 128) -> Device:
    server = device(SERVER, 2)
    server.cm.listen(PORT, backlog)
    return server
