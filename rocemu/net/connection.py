"""Connections for asyncio programs: connect, then one awaitable a verb."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rocemu.net.advert import LARGEST_DIRECTORY, RemoteRegion, parse_regions
from rocemu.net.nic import Nic
from rocemu.net.sockets import NetError, checked_mtu, resolve
from rocemu.protection import MemoryRegion, ProtectionDomain
from rocemu.transport import (
    SGE,
    WC,
    CmConnection,
    ConnectFailed,
    Disconnected,
    Established,
    Event,
    QPError,
    QPInitAttr,
    QueuePair,
    RecvWR,
    Rejected,
    SendWR,
)
from rocemu.verbs import MTU, AccessFlags, QPState, WCStatus, WROpcode
from rocemu.wire import RejReason

__all__ = ["ALL_REMOTE", "DEFAULT_PORT", "CompletionError", "Connection", "connect"]

#: Port of the RDMA CM service, where not told otherwise; the number is pingpong's and perftest's.
DEFAULT_PORT = 18515
#: What a peer may do through a queue pair, so that the region decides.
ALL_REMOTE = (
    AccessFlags.IBV_ACCESS_LOCAL_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
    | AccessFlags.IBV_ACCESS_FLUSH_GLOBAL
    | AccessFlags.IBV_ACCESS_FLUSH_PERSISTENT
)
_LOCAL_WRITE = AccessFlags.IBV_ACCESS_LOCAL_WRITE
_MASK64 = (1 << 64) - 1


class CompletionError(Exception):
    """A verb completed with another status than IBV_WC_SUCCESS; ``completion`` says which."""

    def __init__(self, completion: WC) -> None:
        super().__init__(f"{completion.opcode.name}: {completion.status.name}")
        self.completion = completion


class Connection:
    """An established RC connection; made by :func:`connect` or a Listener.

    Every verb posts one work request and returns when it has completed; any number may be under
    way at once.  They raise :class:`CompletionError` for a completion in error, and QPError when
    nothing can be posted (any more).  A verb that is cancelled only stops waiting: what was posted
    is carried out, and a message that comes for a cancelled :meth:`receive` is lost.
    """

    def __init__(self, nic: Nic, qp: QueuePair, cm: CmConnection | None = None) -> None:
        self.nic = nic
        self.qp = qp
        self.cm = cm
        self.regions: dict[str, RemoteRegion] = {}
        """What the peer advertised, by name."""
        self.closed = asyncio.Event()
        """Set when the connection was taken down from either side."""
        self._next_wr_id = 1
        self._waiting: dict[int, asyncio.Future[WC]] = {}
        self._lent: dict[int, MemoryRegion] = {}
        """Regions that the device may use until the work request of this number completes."""
        self._answer: asyncio.Future[Event] = nic.loop.create_future()
        nic.on_completion[qp.qp_num] = self._completed
        nic.on_event.append(self._happened)

    # ------------------------------------------------------------------ verbs

    def post(self, wr: SendWR) -> "asyncio.Future[WC]":
        """Post a send work request as it is; the future gives its completion, also in error.

        Raises QPError when it cannot be posted.  An unsignaled one completes in error only.
        """
        self._check_open()
        if wr.wr_id in self._waiting:
            raise QPError(f"wr_id {wr.wr_id}: a work request of this number is under way")
        self.qp.post_send(wr)
        return self._posted(wr.wr_id)

    def next_wr_id(self) -> int:
        """A number that no work request under way has."""
        while self._next_wr_id in self._waiting:
            self._next_wr_id += 1
        self._next_wr_id += 1
        return self._next_wr_id - 1

    def _check_open(self) -> None:
        if self.nic.device.qps.get(self.qp.qp_num) is not self.qp:
            raise QPError("the connection is over")

    def _posted(self, wr_id: int) -> "asyncio.Future[WC]":
        future: asyncio.Future[WC] = self.nic.loop.create_future()
        self._waiting[wr_id] = future
        self.nic.pump()
        return future

    async def write(
        self, to: RemoteRegion, data: bytes, *, offset: int = 0, imm: int | None = None
    ) -> WC:
        """RDMA WRITE at ``offset`` of a region of the peer, with an immediate or without."""
        opcode = WROpcode.IBV_WR_RDMA_WRITE
        if imm is not None:
            opcode = WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM
        return await self._run(opcode, data, to, offset, imm=imm or 0)

    async def read(self, at: RemoteRegion, length: int, *, offset: int = 0) -> bytes:
        """RDMA READ of ``length`` bytes from ``offset`` of a region of the peer."""
        buffer = bytearray(length)
        await self._run(WROpcode.IBV_WR_RDMA_READ, buffer, at, offset)
        return bytes(buffer)

    async def fetch_add(self, at: RemoteRegion, add: int, *, offset: int = 0) -> int:
        """ATOMIC FETCH AND ADD on 8 bytes; gives the value before."""
        buffer = bytearray(8)
        opcode = WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD
        await self._run(opcode, buffer, at, offset, compare_add=add)
        return int.from_bytes(buffer, "little")

    async def compare_swap(
        self, at: RemoteRegion, compare: int, swap: int, *, offset: int = 0
    ) -> int:
        """ATOMIC COMPARE AND SWAP on 8 bytes; gives the value before."""
        buffer = bytearray(8)
        opcode = WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP
        await self._run(opcode, buffer, at, offset, compare_add=compare, swap=swap)
        return int.from_bytes(buffer, "little")

    async def send(self, data: bytes, *, imm: int | None = None) -> WC:
        """SEND a message to a receive of the peer, with an immediate or without."""
        opcode = WROpcode.IBV_WR_SEND if imm is None else WROpcode.IBV_WR_SEND_WITH_IMM
        return await self._run(opcode, data, None, imm=imm or 0)

    async def receive(self, size: int = 4096) -> tuple[bytes, WC]:
        """Post a receive of ``size`` bytes and wait for what comes: the message and its completion.

        A WRITE with immediate completes a receive too, with an empty message here.  Post before
        the peer sends: a message without a receive draws RNR NAKs.
        """
        self._check_open()
        buffer, wr_id = bytearray(size), self.next_wr_id()
        with self._lend(wr_id, buffer, _LOCAL_WRITE) as mr:
            self.qp.post_recv(RecvWR(wr_id, (SGE(mr.va, size, mr.lkey),)))
        completion = await self._posted(wr_id)
        if completion.status is not WCStatus.IBV_WC_SUCCESS:
            raise CompletionError(completion)
        length = completion.byte_len if completion.opcode.name == "IBV_WC_RECV" else 0
        return bytes(buffer[:length]), completion

    async def _run(
        self,
        opcode: WROpcode,
        buffer: bytes | bytearray,
        remote: RemoteRegion | None,
        offset: int = 0,
        *,
        imm: int = 0,
        compare_add: int = 0,
        swap: int = 0,
    ) -> WC:
        """Post one request on ``buffer``, registered for as long as it takes."""
        access = _LOCAL_WRITE if isinstance(buffer, bytearray) else AccessFlags(0)
        wr_id = self.next_wr_id()
        with self._lend(wr_id, buffer, access) as mr:
            wr = SendWR(
                wr_id,
                opcode,
                (SGE(mr.va, len(buffer), mr.lkey),),
                remote_addr=remote.va + offset & _MASK64 if remote else 0,
                rkey=remote.rkey if remote else 0,
                imm_data=imm,
                compare_add=compare_add,
                swap=swap,
            )
            future = self.post(wr)
        completion = await future
        if completion.status is not WCStatus.IBV_WC_SUCCESS:
            raise CompletionError(completion)
        return completion

    @contextmanager
    def _lend(
        self, wr_id: int, buffer: bytes | bytearray, access: AccessFlags
    ) -> Iterator[MemoryRegion]:
        """Register a buffer until the request that is posted inside completes (or is not taken)."""
        mr = self.nic.device.reg_mr(self.qp.pd, memoryview(buffer), access)
        self._lent[wr_id] = mr
        try:
            yield mr
        except BaseException:
            self._return(wr_id)
            raise

    def _return(self, wr_id: int) -> None:
        mr = self._lent.pop(wr_id, None)
        if mr is not None:
            self.nic.device.dereg_mr(mr)

    def _completed(self, completion: WC) -> None:
        self._return(completion.wr_id)
        future = self._waiting.pop(completion.wr_id, None)
        if future is not None and not future.done():
            future.set_result(completion)

    # ------------------------------------------------------------------ the peer's regions, the end

    async def learn_regions(self) -> None:
        """Take the regions that the peer advertised in its REP, and read its directory if any.

        Raises NetError when the directory cannot be read.
        """
        if self.cm is None:
            return
        regions, directory = parse_regions(self.cm.private_data)
        if directory is not None:
            peer = self.cm.peer_address
            if directory.length > LARGEST_DIRECTORY:
                raise NetError(f"{peer} advertises a directory of {directory.length} bytes")
            try:
                content = await self.read(directory, directory.length)
            except CompletionError as error:
                why = error.completion.status.name
                raise NetError(f"the directory of {peer} cannot be read: {why}") from error
            regions += parse_regions(content)[0]
        self.regions = {region.name: region for region in regions}

    def _happened(self, event: Event) -> None:
        if not isinstance(event, Established | Rejected | ConnectFailed | Disconnected):
            return
        if event.connection.qp is not self.qp:
            return
        if isinstance(event, Disconnected):
            self.closed.set()
        if not self._answer.done():
            self._answer.set_result(event)

    async def answered(self) -> Event:
        """What became of the attempt to connect."""
        return await self._answer

    async def disconnect(self) -> None:
        """Take the connection down and wait until the peer knows (or does not answer)."""
        if self.cm is not None and not self.closed.is_set() and not self.nic.closed:
            self.nic.device.cm.disconnect(self.cm, now=self.nic.loop.time())
            self.nic.pump()
            await self.closed.wait()
        self.release()

    def release(self) -> None:
        """Forget the queue pair; what is still posted is flushed."""
        self.closed.set()
        if self.nic.device.qps.get(self.qp.qp_num) is self.qp:
            if self.qp.state is not QPState.IBV_QPS_RESET:
                self.qp.enter_error()
            self.nic.tell_completions()
            self.nic.device.destroy_qp(self.qp)
            del self.nic.on_completion[self.qp.qp_num]
            self.nic.on_event.remove(self._happened)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.disconnect()


async def connect(
    nic: Nic,
    host: str,
    port: int = DEFAULT_PORT,
    *,
    pd: ProtectionDomain | None = None,
    mtu: MTU | None = None,
    retry_count: int = 7,
    rnr_retry: int = 7,
    ack_timeout: int = 16,
    min_rnr_timer: int = 12,
    access: AccessFlags = ALL_REMOTE,
) -> Connection:
    """Connect by RDMA CM to a service of a peer; ``mtu`` None is the largest that the path takes.

    ``ack_timeout`` is 4.096 us * 2^n.  Raises :class:`NetError` with a sentence when the peer does
    not answer, nobody listens there, or it rejects; ValueError for a number out of range.
    """
    if not 0 < port < 1 << 16:
        raise ValueError(f"port {port}: allowed are 1 to 65535")
    address = resolve(host, socket.AF_INET6 if ":" in nic.address else socket.AF_INET)
    path_mtu = checked_mtu(nic.address, address, mtu)
    device = nic.device
    qp = device.create_qp(pd or device.alloc_pd(), QPInitAttr(nic.cq, nic.cq))
    connection = Connection(nic, qp)
    try:
        connection.cm = device.cm.connect(
            qp,
            address,
            port,
            access=access,
            now=nic.loop.time(),
            path_mtu=path_mtu,
            retry_count=retry_count,
            rnr_retry=rnr_retry,
            ack_timeout=ack_timeout,
            min_rnr_timer=min_rnr_timer,
        )
        nic.pump()
        event = await connection.answered()
        if isinstance(event, Established):
            await connection.learn_regions()
            return connection
    except BaseException:
        if connection.cm is not None:
            device.cm.disconnect(connection.cm, now=nic.loop.time())
        connection.release()
        nic.pump()
        raise
    connection.release()
    raise NetError(_why(event, address, port))


def _why(event: Event, address: str, port: int) -> str:
    if isinstance(event, ConnectFailed):
        return event.why
    assert isinstance(event, Rejected)
    if event.reason == RejReason.INVALID_SERVICE_ID:
        return f"{address} rejects the connection: nobody listens on CM port {port} there"
    known = event.reason in list(RejReason)
    reason = RejReason(event.reason).name.lower().replace("_", " ") if known else "unknown"
    return f"{address} rejects the connection to port {port}: reason {event.reason}, {reason}"
