"""The requester: connects, posts operations in order, tells what became of each."""

import asyncio
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

from rocemu.daemon.base import Daemon, disconnect_all
from rocemu.daemon.config import RequesterConfig
from rocemu.daemon.control import ControlError
from rocemu.daemon.operations import LocalPlace, Operation, Target, parse_operations
from rocemu.daemon.output import Reporter, completion_record
from rocemu.daemon.regions import region_state
from rocemu.net import Connection, connect, resolve, source_address
from rocemu.protection import MemoryRegion
from rocemu.transport import SGE, WC, QPError, SendWR
from rocemu.verbs import AccessFlags, SendFlags, WCStatus, WROpcode

__all__ = ["Requester"]

_ATOMICS = (WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP, WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD)


class _Work:
    """An operation that was posted, its buffer, and whoever waits for it."""

    def __init__(self, operation: Operation, sge: SGE, own: MemoryRegion | None) -> None:
        self.operation = operation
        self.sge = sge
        self.own = own
        """A region made for this operation alone."""
        self.done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()


class Requester(Daemon):
    """Posts what it was given and ends, or waits for more on its control socket."""

    name = "requester"
    config: RequesterConfig

    def __init__(self, config: RequesterConfig, report: Reporter) -> None:
        super().__init__(config, report)
        self.connection: Connection | None = None
        self._work: dict[int, _Work] = {}
        self._statuses: list[WCStatus] = []
        self._next_wr_id = 1

    async def serve(self) -> int:
        job = asyncio.create_task(self._do_all())
        stop = asyncio.create_task(self.stopping.wait())
        await asyncio.wait((job, stop), return_when=asyncio.FIRST_COMPLETED)
        for task in (job, stop):
            task.cancel()
        await asyncio.wait((job, stop))
        if self.connection is not None:
            await disconnect_all([self.connection])
        if not job.cancelled():
            job.result()  # raises what went wrong
        return 0 if self.stopping.is_set() else self._verdict()

    async def _do_all(self) -> None:
        await self._connect()
        for operation in self.config.operations:
            self._check_names(operation)
        await self._post_all(deque(self.config.operations))
        if self.config.daemon:
            await self.stopping.wait()

    async def _connect(self) -> None:
        """Connect as the configuration says, and tell."""
        config = self.config
        assert config.remote is not None
        if config.static:
            connection = self.connect_statically()
        else:
            connection = await connect(
                self.nic,
                config.remote,
                config.port,
                pd=self.pd,
                mtu=config.mtu,
                retry_count=config.retry_count,
                rnr_retry=config.rnr_retry,
                ack_timeout=config.timeout,
                min_rnr_timer=config.rnr_timer,
                access=config.qp_access,
            )
        self.connection, qp = connection, connection.qp
        self.nic.on_completion[qp.qp_num] = self._completed
        self.report(
            "connected",
            qp_num=qp.qp_num,
            remote_qp_num=qp.attr.dest_qp_num,
            peer=qp.attr.av.address,
            path_mtu=qp.path_mtu,
            remote_mrs=[region_state(region) for region in connection.regions.values()],
        )

    def _address(self) -> str:
        if self.config.bind is not None or self.config.remote is None:
            return Daemon._address(self)
        return source_address(resolve(self.config.remote))

    def commands(self) -> dict[str, Any]:
        return Daemon.commands(self) | {"post": self._post_command, "reconnect": self._reconnect}

    # ------------------------------------------------------------------ posting

    async def _post_all(self, operations: deque[Operation]) -> None:
        """Keep up to ``tx_depth`` of them posted until all are complete."""
        waiting: set[asyncio.Future[Any]] = set()
        while operations or waiting:
            while operations and len(waiting) < self.config.tx_depth:
                waiting.add(self._post(operations.popleft()).done)
            self.nic.pump()
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def _post(self, operation: Operation) -> _Work:
        """Post one operation; raises QPError.

        An unsignaled one is posted signaled all the same, to know when it is complete; what it
        must not do, show a completion when it went well, it does not do.
        """
        target, inline_data = operation.target, self._inline(operation)
        work = self._prepare(operation)
        wr = SendWR(
            self._next_wr_id,
            operation.opcode,
            (work.sge,),
            operation.flags | SendFlags.IBV_SEND_SIGNALED,
            imm_data=operation.immediate or 0,
            compare_add=operation.compare_add,
            swap=operation.swap,
            invalidate_rkey=operation.invalidate or 0,
            flush_length=operation.extent,
            flush_placement=operation.placement,
            flush_selectivity=operation.selectivity,
            inline_data=inline_data,
            **(self._remote(target) if target else {}),
        )
        try:
            self._connected.qp.post_send(wr)
        except QPError:
            self._give_back(work)
            raise
        self._work[wr.wr_id] = work
        self._next_wr_id += 1
        return work

    @property
    def _connected(self) -> Connection:
        if self.connection is None:
            raise ControlError("not connected")
        return self.connection

    def _give_back(self, work: _Work) -> None:
        if work.own is not None:
            self.nic.device.dereg_mr(work.own)

    def _prepare(self, operation: Operation) -> _Work:
        """Local memory of an operation: the place that it names, or a region of its own."""
        own = None
        if operation.local is not None:
            mr, offset = self._local(operation.local)
            sge = SGE(mr.va + offset & (1 << 64) - 1, operation.length, mr.lkey)
        else:
            buffer = bytearray(operation.data or operation.length)
            own = self.nic.device.reg_mr(
                self.pd, buffer, AccessFlags.IBV_ACCESS_LOCAL_WRITE, name="literal"
            )
            sge = SGE(own.va, len(buffer), own.lkey)
        if operation.lkey is not None:
            sge = SGE(sge.addr, sge.length, operation.lkey)
        return _Work(operation, sge, own)

    def _inline(self, operation: Operation) -> bytes:
        if not operation.flags & SendFlags.IBV_SEND_INLINE:
            return b""
        if operation.local is None:
            return operation.data
        mr, offset = self._local(operation.local)
        if offset + operation.length > mr.length:
            raise ControlError(f"{operation.text!r}: {mr.name} has {mr.length} bytes to copy from")
        return mr.read(offset, operation.length)

    def _local(self, place: LocalPlace) -> tuple[MemoryRegion, int]:
        return self.region(place.name), place.offset

    def _remote(self, target: Target) -> dict[str, Any]:
        if target.name is None:
            return {"remote_addr": target.offset, "rkey": target.rkey}
        region = self._connected.regions[target.name]
        return {"remote_addr": region.va + target.offset & (1 << 64) - 1, "rkey": region.rkey}

    def _check_names(self, operation: Operation) -> None:
        """Names that lead nowhere are found before anything is posted."""
        target, regions = operation.target, self._connected.regions
        if target and target.name is not None and target.name not in regions:
            known = ", ".join(regions) or "none"
            raise ControlError(
                f"{operation.text!r}: {self.config.remote} advertised no region {target.name!r}; "
                f"there are: {known}"
            )
        if operation.local is not None:
            self.region(operation.local.name)

    # ------------------------------------------------------------------ completions

    def _completed(self, completion: WC) -> None:
        work = self._work.pop(completion.wr_id, None)
        if work is None:
            return
        operation = work.operation
        result: dict[str, Any] = {}
        if completion.status is WCStatus.IBV_WC_SUCCESS and work.own is not None:
            if operation.opcode is WROpcode.IBV_WR_RDMA_READ:
                result["data"] = bytes(work.own.memory).hex()
            elif operation.opcode in _ATOMICS:
                result["original"] = work.own.load64(0)
        self._give_back(work)
        record = completion_record(completion, **result, operation=operation.text)
        signaled = operation.flags & SendFlags.IBV_SEND_SIGNALED
        if signaled or completion.status is not WCStatus.IBV_WC_SUCCESS:
            self._statuses.append(completion.status)
            self.report("completion", **record)
        if not work.done.done():
            work.done.set_result(record)

    def _verdict(self) -> int:
        """Exit code: 0 when the completions are what was expected."""
        expected, came = self.config.expect, self._statuses
        if expected is None:
            return int(any(status is not WCStatus.IBV_WC_SUCCESS for status in came))
        if expected == came:
            return 0
        wanted, seen = (" ".join(_short(status) for status in list_) for list_ in (expected, came))
        sys.stderr.write(f"expected completions: {wanted}\nbut there were:       {seen}\n")
        return 1

    # ------------------------------------------------------------------ control

    async def _post_command(self, operation: str) -> Iterable[dict[str, Any]]:
        parsed = parse_operations([operation])
        if not parsed:
            raise ControlError("no operation")
        self._check_names(parsed[0])
        work = self._post(parsed[0])
        self.nic.pump()
        return [{"object": "completion", **await work.done}]

    async def _reconnect(self) -> Iterable[dict[str, Any]]:
        """A new connection in place of one that is in ERR."""
        old, self.connection = self._connected, None
        await disconnect_all([old])
        old.release()
        await self._connect()
        return []


def _short(status: WCStatus) -> str:
    return status.name.removeprefix("IBV_WC_")
