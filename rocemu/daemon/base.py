"""What both daemons do alike: start and stop, regions, events to the reporter, control."""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from rocemu.capture import EndpointCapture
from rocemu.daemon.config import DaemonConfig
from rocemu.daemon.control import ControlError, ControlServer
from rocemu.daemon.operations import parse_place
from rocemu.daemon.output import Reporter, event_record
from rocemu.daemon.regions import parse_size, region_state
from rocemu.net import Connection, Nic, checked_mtu, resolve
from rocemu.protection import MemoryRegion, ProtectionDomain
from rocemu.transport import AddressVector, Event, PacketLook, QPAttr, QPInitAttr, QueuePair
from rocemu.verbs import QPAttrMask, QPState
from rocemu.wire import ROCE_PORT

__all__ = ["Daemon", "disconnect_all"]

_M = QPAttrMask
#: The way to RTS, with all that each step requires.
_STEPS = (
    (QPState.IBV_QPS_INIT, _M.IBV_QP_PKEY_INDEX | _M.IBV_QP_PORT | _M.IBV_QP_ACCESS_FLAGS),
    (
        QPState.IBV_QPS_RTR,
        _M.IBV_QP_AV
        | _M.IBV_QP_PATH_MTU
        | _M.IBV_QP_DEST_QPN
        | _M.IBV_QP_RQ_PSN
        | _M.IBV_QP_MAX_DEST_RD_ATOMIC
        | _M.IBV_QP_MIN_RNR_TIMER,
    ),
    (
        QPState.IBV_QPS_RTS,
        _M.IBV_QP_SQ_PSN
        | _M.IBV_QP_TIMEOUT
        | _M.IBV_QP_RETRY_CNT
        | _M.IBV_QP_RNR_RETRY
        | _M.IBV_QP_MAX_QP_RD_ATOMIC,
    ),
)


class Daemon:
    """A process with one NIC; subclasses say what it does between start and stop."""

    name: ClassVar[str]
    config: DaemonConfig

    def __init__(self, config: DaemonConfig, report: Reporter) -> None:
        self.config = config
        self.report = report
        self.regions: dict[str, MemoryRegion] = {}
        self.stopping = asyncio.Event()
        """Set by SIGTERM, SIGINT and ``rocemu ctl PATH stop``."""

    async def run(self) -> int:
        """Start, serve, stop; gives the exit code.

        Raises OSError, ControlError, QPError and RegistrationError, all with a sentence.
        """
        config = self.config
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        self.bind = self._address()
        self.nic = await Nic.open(
            self.bind,
            seed=config.seed,
            icrc=config.icrc,
            faults=config.fault,
            profile=config.profile,
            look=PacketLook(config.tos, config.ttl, config.migreq, config.pkey),
        )
        control = None
        try:
            if config.capture:  # after the port: a second daemon must not empty the first one's
                self.nic.capture = self._open_capture(config.capture)
            self.pd = self.nic.device.alloc_pd()
            for spec in config.mr:
                pd = self.domain_of(spec.name)
                self.regions[spec.name] = spec.register(self.nic.device, pd)
            self.nic.on_event.append(self._tell)
            self.nic.on_trouble = lambda sentence: self.report("trouble", detail=sentence)
            if config.control is not None:
                control = await ControlServer.open(config.control, self.commands())
            return await self.serve()
        finally:
            if control is not None:
                await control.close()
            await self.nic.close()

    async def serve(self) -> int:
        """What the daemon is for; returns when it is done or ``stopping`` is set."""
        raise NotImplementedError

    def commands(self) -> dict[str, Callable[..., Any]]:
        """Control commands by name; each takes words and gives records."""
        return {
            "state": self._state,
            "counters": self._counters,
            "memory": self._memory,
            "stop": self._stop,
        }

    def domain_of(self, name: str) -> ProtectionDomain:
        """The protection domain that the region of this name is registered in."""
        return self.pd

    # ------------------------------------------------------------------ start

    def _address(self) -> str:
        """The address to bind."""
        return resolve(self.config.bind or "127.0.0.1")

    def _open_capture(self, path: str) -> EndpointCapture:
        return EndpointCapture.create(
            path,
            name=f"rocemu {self.name} {self.bind}",
            comment=f"rocemu {self.name}",
            on_error=lambda error: self.report(
                "trouble", detail=f"the capture ends here: {error.strerror or error}"
            ),
        )

    def _tell(self, event: Event) -> None:
        record = event_record(event)
        if record is not None:
            name, values = record
            self.report(name, **values)

    def announce(self) -> None:
        """Report that UDP 4791 is bound, with the regions."""
        extra = {} if self.config.static else {"cm_port": self.config.port}
        mrs = [region_state(mr) for mr in self.regions.values()]
        self.report("listening", address=self.bind, port=ROCE_PORT, mrs=mrs, **extra)

    # ------------------------------------------------------------------ static mode

    def connect_statically(self) -> Connection:
        """A queue pair brought to RTS with the numbers of the command line; nothing is sent."""
        config, device = self.config, self.nic.device
        assert config.remote is not None
        address = resolve(config.remote, _family(self.bind))
        qp = device.create_qp(self.pd, QPInitAttr(self.nic.cq, self.nic.cq), config.qpn)
        psn = device.rng.getrandbits(24) if config.psn is None else config.psn
        attr = QPAttr(
            qp_access_flags=config.qp_access,
            av=AddressVector(address, config.tos, config.ttl),
            path_mtu=checked_mtu(self.bind, address, config.mtu),
            timeout=config.timeout,
            retry_cnt=config.retry_count,
            rnr_retry=config.rnr_retry,
            min_rnr_timer=config.rnr_timer,
            sq_psn=psn,
            rq_psn=config.remote_psn or 0,
            dest_qp_num=config.remote_qpn or 0,
        )
        for state, mask in _STEPS:
            attr.qp_state = state
            qp.modify(attr, mask | QPAttrMask.IBV_QP_STATE)
        self._report_endpoint("local", qp.qp_num, psn, self.bind)
        self._report_endpoint("remote", attr.dest_qp_num, attr.rq_psn, address)
        self.nic.pump()
        return Connection(self.nic, qp)

    def _report_endpoint(self, side: str, qp_num: int, psn: int, address: str) -> None:
        gid = address if ":" in address else f"::ffff:{address}"
        self.report("endpoint", side=side, qp_num=qp_num, psn=psn, gid=gid)

    # ------------------------------------------------------------------ control

    def _state(self) -> list[dict[str, Any]]:
        device = self.nic.device
        qps = [_qp_state(qp) for qp in device.qps.values()]
        return qps + [
            {"object": "mr", "lkey": mr.lkey, "pd": mr.pd.handle, **region_state(mr)}
            for mr in self.regions.values()
        ]

    def _counters(self) -> list[dict[str, Any]]:
        device = self.nic.device
        return [
            {"object": "packets", **device.counters},
            {"object": "cm", **device.cm.counters},
            {"object": "mpt", **device.table.counters()},
        ]

    def _memory(self, place: str, length: str) -> list[dict[str, Any]]:
        where = parse_place(place)
        mr, size = self.region(where.name), parse_size(length)
        if where.offset + size > mr.length:
            raise ControlError(f"{place} and {length} bytes: {where.name} has {mr.length}")
        data = mr.read(where.offset, size).hex()
        return [{"object": "memory", "name": mr.name, "offset": where.offset, "data": data}]

    def _stop(self) -> list[dict[str, Any]]:
        self.stopping.set()
        return []

    def region(self, name: str) -> MemoryRegion:
        """A region of this process by name; raises ControlError."""
        if name not in self.regions:
            raise ControlError(f"no region {name!r}; there are {', '.join(self.regions) or 'none'}")
        return self.regions[name]


async def disconnect_all(connections: list[Connection], patience: float = 1.0) -> None:
    """Take connections down; a peer that does not answer is not waited for."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await asyncio.gather(*(connection.disconnect() for connection in connections))


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _qp_state(qp: QueuePair) -> dict[str, Any]:
    return {
        "object": "qp",
        "qp_num": qp.qp_num,
        "state": qp.state.name,
        "peer": qp.attr.av.address,
        "remote_qp_num": qp.attr.dest_qp_num,
        "path_mtu": qp.path_mtu,
        "sq_psn": qp.requester.psn,
        "rq_psn": qp.responder.epsn,
        "msn": qp.responder.msn,
        "sends": len(qp.requester.queue),
        "receives": len(qp.responder.receives),
    }
