"""The two ends of a queue pair behind one set of calls, so that a test can swap them.

Both are :class:`Side`: the kernel's through ``guest/peer.py``, ours through an asyncio NIC.  Both
have the regions ``target``, ``good``, ``source``, ``sink`` and ``inbox`` (``guest/peer.py`` says
what for).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Protocol, Self

from rocemu.net import Nic
from rocemu.transport import (
    SGE,
    WC,
    AddressVector,
    AsyncEvent,
    Event,
    QPAttr,
    QPError,
    QPInitAttr,
    RecvWR,
    SendWR,
)
from rocemu.transport.attributes import TRANSITIONS
from rocemu.verbs import MTU, AccessFlags, QPAttrMask, QPState, SendFlags, WROpcode
from tests.interop.kit.guest import AGENT_PORT, CONTROL, GUEST4, GUEST6, HOST4, HOST6

REMOTE = (
    AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
)
LOCAL = AccessFlags.IBV_ACCESS_LOCAL_WRITE
ALL = LOCAL | REMOTE
SIZE = 8192
PATIENCE = 30.0  # seconds; only a test that fails waits as long


@dataclass(frozen=True)
class Setup:
    """How the memory and the queue pair of one side are made."""

    size: int = SIZE
    recv_size: int = 8192
    access: AccessFlags = ALL
    qp_access: AccessFlags = REMOTE
    other_pd: bool = False
    """``target`` belongs to a protection domain that is not the queue pair's."""


@dataclass(frozen=True)
class Link:
    """Attributes of a connected queue pair, without the peer's address and number."""

    rq_psn: int
    sq_psn: int
    mtu: MTU = MTU.IBV_MTU_1024
    timeout: int = 14
    retry: int = 2
    rnr_retry: int = 1
    reads: int = 4


@dataclass(frozen=True)
class Send:
    """A send work request: ``region`` and ``at`` are local, ``addr`` and ``rkey`` the peer's."""

    wr_id: int
    opcode: int
    length: int
    region: str = "source"
    at: int = 0
    lkey_off: int = 0
    addr: int = 0
    rkey: int = 0
    imm: int = 0
    flags: SendFlags = SendFlags(0)
    compare_add: int = 0
    swap: int = 0


@dataclass(frozen=True)
class Receive:
    wr_id: int
    length: int
    at: int = 0
    lkey_off: int = 0


@dataclass(frozen=True)
class Completion:
    wr_id: int
    status: str
    byte_len: int
    imm: int


@dataclass(frozen=True)
class Region:
    va: int
    length: int
    rkey: int


class Side(Protocol):
    name: str
    address: str
    qpn: int
    regions: dict[str, Region]

    async def open(self, setup: Setup) -> None: ...
    async def connect(self, peer: Side, link: Link, qpn: int | None = None) -> None: ...
    async def send(self, *requests: Send) -> dict[int, str]: ...
    async def receive(self, *receives: Receive) -> None: ...
    async def poll(self, cq: str, want: int, seconds: float = PATIENCE) -> list[Completion]: ...
    async def state(self) -> str: ...
    async def events(self) -> list[str]: ...
    async def write(self, region: str, data: bytes, at: int = 0) -> None: ...
    async def read(self, region: str, length: int, at: int = 0) -> bytes: ...
    async def digest(self, region: str) -> str: ...
    async def deregister(self, region: str) -> None: ...
    async def close(self) -> None: ...


def gid_of(address: str) -> bytes:
    ip = ip_address(address)
    return ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed


class Kernel:
    """The guest's queue pair."""

    name = "kernel"

    def __init__(self, ipv6: bool = False) -> None:
        self.address = GUEST6 if ipv6 else GUEST4
        self.qpn = 0
        self.regions: dict[str, Region] = {}

    async def open(self, setup: Setup) -> None:
        self._reader, self._writer = await start("peer")
        made = await self._call(
            "open",
            gid=2 if ":" in self.address else 1,
            size=setup.size,
            recv_size=setup.recv_size,
            access=int(setup.access),
            qp_access=int(setup.qp_access),
            other_pd=setup.other_pd,
        )
        self.qpn = made["qpn"]
        self.regions = {name: Region(*numbers) for name, numbers in made["regions"].items()}

    async def _call(self, do: str, **arguments: Any) -> Any:
        self._writer.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        line = await asyncio.wait_for(self._reader.readline(), PATIENCE * 2)
        try:
            answer = json.loads(line)
        except ValueError:
            raise AssertionError(
                f"the guest's peer says {line + await self._reader.read()!r}"
            ) from None
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{do} in the guest: {answer['error']}")
        return answer

    async def connect(self, peer: Side, link: Link, qpn: int | None = None) -> None:
        await self._call(
            "connect",
            gid=gid_of(peer.address).hex(":", 2),
            qpn=peer.qpn if qpn is None else qpn,
            **vars(link),
        )

    async def send(self, *requests: Send) -> dict[int, str]:
        refused = await self._call("send", requests=[vars(request) for request in requests])
        return {int(position): why for position, why in refused.items()}

    async def receive(self, *receives: Receive) -> None:
        await self._call("receive", receives=[vars(receive) for receive in receives])

    async def poll(self, cq: str, want: int, seconds: float = PATIENCE) -> list[Completion]:
        found = await self._call("poll", cq=cq, want=want, seconds=seconds)
        return [Completion(*numbers) for numbers in found]

    async def state(self) -> str:
        return await self._call("state")

    async def events(self) -> list[str]:
        return await self._call("events")

    async def write(self, region: str, data: bytes, at: int = 0) -> None:
        await self._call("write", region=region, data=data.hex(), at=at)

    async def read(self, region: str, length: int, at: int = 0) -> bytes:
        return bytes.fromhex(await self._call("read", region=region, length=length, at=at))

    async def digest(self, region: str) -> str:
        return await self._call("digest", region=region)

    async def deregister(self, region: str) -> None:
        await self._call("deregister", region=region)

    async def close(self) -> None:
        if hasattr(self, "_writer"):
            self._writer.close()
            await self._writer.wait_closed()


class Rocemu:
    """Our queue pair, on a NIC of its own."""

    name = "rocemu"

    def __init__(self, ipv6: bool = False) -> None:
        self.address = HOST6 if ipv6 else HOST4
        self.qpn = 0
        self.regions: dict[str, Region] = {}
        self._events: list[str] = []

    async def open(self, setup: Setup) -> None:
        self.nic = await Nic.open(self.address)
        self.nic.on_event.append(self._happened)
        device = self.nic.device
        pd = device.alloc_pd()
        target_pd = device.alloc_pd() if setup.other_pd else pd
        self._cqs = {"send": device.create_cq(), "recv": device.create_cq()}
        self._mrs = {
            "target": device.reg_mr(target_pd, setup.size, setup.access),
            "good": device.reg_mr(pd, 4096, ALL),
            "source": device.reg_mr(pd, setup.size, LOCAL),
            "sink": device.reg_mr(pd, setup.size, LOCAL),
            "inbox": device.reg_mr(pd, setup.recv_size, LOCAL),
        }
        self.regions = {n: Region(mr.va, mr.length, mr.rkey) for n, mr in self._mrs.items()}
        self.qp = device.create_qp(
            pd, QPInitAttr(self._cqs["send"], self._cqs["recv"], sq_sig_all=True)
        )
        self.qpn = self.qp.qp_num
        self._move(QPState.IBV_QPS_INIT, QPAttr(qp_access_flags=setup.qp_access))

    def _move(self, to: QPState, attr: QPAttr) -> None:
        attr.qp_state = to
        self.qp.modify(attr, QPAttrMask.IBV_QP_STATE | TRANSITIONS[self.qp.state, to].required)

    def _happened(self, event: Event) -> None:
        if isinstance(event, AsyncEvent):
            self._events.append(event.type.name)

    async def connect(self, peer: Side, link: Link, qpn: int | None = None) -> None:
        attr = QPAttr(
            av=AddressVector(peer.address),
            path_mtu=link.mtu,
            dest_qp_num=peer.qpn if qpn is None else qpn,
            rq_psn=link.rq_psn,
            sq_psn=link.sq_psn,
            max_dest_rd_atomic=link.reads,
            max_rd_atomic=4,
            timeout=link.timeout,
            retry_cnt=link.retry,
            rnr_retry=link.rnr_retry,
        )
        self._move(QPState.IBV_QPS_RTR, attr)
        self._move(QPState.IBV_QPS_RTS, attr)

    async def send(self, *requests: Send) -> dict[int, str]:
        refused = {}
        for position, request in enumerate(requests):
            mr = self._mrs[request.region]
            sge = SGE(mr.va + request.at, request.length, mr.lkey + request.lkey_off)
            try:
                self.qp.post_send(
                    SendWR(
                        request.wr_id,
                        WROpcode(request.opcode),
                        (sge,),
                        SendFlags.IBV_SEND_SIGNALED | request.flags,
                        remote_addr=request.addr,
                        rkey=request.rkey,
                        imm_data=request.imm,
                        compare_add=request.compare_add,
                        swap=request.swap,
                    )
                )
            except QPError as error:
                refused[position] = str(error)
        self.nic.pump()
        return refused

    async def receive(self, *receives: Receive) -> None:
        mr = self._mrs["inbox"]
        for receive in receives:
            sge = SGE(mr.va + receive.at, receive.length, mr.lkey + receive.lkey_off)
            self.qp.post_recv(RecvWR(receive.wr_id, (sge,)))

    async def poll(self, cq: str, want: int, seconds: float = PATIENCE) -> list[Completion]:
        found: list[WC] = []
        end = time.monotonic() + seconds
        while True:
            found += self._cqs[cq].poll(256)
            if len(found) >= want or time.monotonic() > end:
                break
            await asyncio.sleep(0.001)
        return [Completion(c.wr_id, c.status.name, c.byte_len, c.imm_data or 0) for c in found]

    async def state(self) -> str:
        return self.qp.state.name

    async def events(self) -> list[str]:
        events, self._events = self._events, []
        return events

    async def write(self, region: str, data: bytes, at: int = 0) -> None:
        self._mrs[region].memory[at : at + len(data)] = data

    async def read(self, region: str, length: int, at: int = 0) -> bytes:
        return bytes(self._mrs[region].memory[at : at + length])

    async def digest(self, region: str) -> str:
        return hashlib.sha256(self._mrs[region].memory).hexdigest()

    async def deregister(self, region: str) -> None:
        self.nic.device.dereg_mr(self._mrs[region])

    async def close(self) -> None:
        if hasattr(self, "nic"):
            await self.nic.close()


async def start(*words: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin a command in the guest; the streams are its output and input."""
    reader, writer = await asyncio.open_connection(CONTROL, AGENT_PORT, limit=1 << 24)
    writer.write(json.dumps(words).encode() + b"\n")
    return reader, writer


@dataclass
class Command:
    """A command that runs in the guest while a test goes on."""

    words: tuple[str, ...]
    task: asyncio.Task[tuple[int, str]] = field(init=False)

    async def __aenter__(self) -> Self:
        reader, self._writer = await start(*self.words)
        self.task = asyncio.create_task(self._collect(reader))
        return self

    async def _collect(self, reader: asyncio.StreamReader) -> tuple[int, str]:
        output, _, code = (await reader.read()).rpartition(b"\0")
        return int(code or 255), output.decode(errors="replace")

    async def ended(self) -> tuple[int, str]:
        """Exit code and output, standard error included."""
        return await asyncio.wait_for(asyncio.shield(self.task), PATIENCE)

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def in_guest(*words: str) -> str:
    """Run a command in the guest; its output.  It must succeed."""
    async with Command(words) as command:
        code, output = await command.ended()
    assert code == 0, f"{' '.join(words)}: exit code {code}\n{output}"
    return output
