"""The responder: exposes regions, answers whoever connects, shows what arrives."""

from functools import cached_property
from typing import Any

from rocemu.daemon.base import Daemon, disconnect_all
from rocemu.daemon.config import ResponderConfig
from rocemu.daemon.control import ControlError
from rocemu.daemon.output import completion_record
from rocemu.daemon.regions import RegionSpec, region_state
from rocemu.net import Connection, Listener
from rocemu.net.advert import DIRECTORY_NAME
from rocemu.protection import MemoryRegion, ProtectionDomain
from rocemu.transport import (
    SGE,
    WC,
    ConnectFailed,
    Disconnected,
    Established,
    Event,
    RecvWR,
    Rejected,
)
from rocemu.verbs import AccessFlags, WCOpcode, WCStatus

__all__ = ["Responder"]


class Responder(Daemon):
    """Serves any number of connections until it is told to stop."""

    name = "responder"
    config: ResponderConfig

    async def serve(self) -> int:
        self._buffers: dict[int, MemoryRegion] = {}
        self._connections: dict[int, Connection] = {}
        if self.config.static:
            self.announce()
            self._prepare(self.connect_statically())
        else:
            self.listener = Listener(
                self.nic,
                self.config.port,
                self.pd,
                self.regions.values(),
                access=self.config.qp_access,
                min_rnr_timer=self.config.rnr_timer,
            )
            self.listener.on_accept = self._prepare
            self.nic.on_event.append(self._connections_changed)
            self.announce()
        await self.stopping.wait()
        if not self.config.static:
            await disconnect_all(list(self._connections.values()))
        return 0

    def commands(self) -> dict[str, Any]:
        more = {"register": self._register, "deregister": self._deregister}
        return Daemon.commands(self) | more

    def domain_of(self, name: str) -> ProtectionDomain:
        return self._other_pd if name in self.config.other_pd else self.pd

    @cached_property
    def _other_pd(self) -> ProtectionDomain:
        return self.nic.device.alloc_pd()

    # ------------------------------------------------------------------ connections

    def _prepare(self, connection: Connection) -> None:
        """A queue pair is ready: post its receives, and take its completions from now on."""
        qp = connection.qp
        self._connections[qp.qp_num] = connection
        self.nic.on_completion[qp.qp_num] = self._completed
        count, size = self.config.recv
        if count:
            self._buffers[qp.qp_num] = self.nic.device.reg_mr(
                self.pd, count * size, AccessFlags.IBV_ACCESS_LOCAL_WRITE, name="recv"
            )
        for slot in range(count):
            self._post_receive(qp.qp_num, slot)

    def _post_receive(self, qp_num: int, slot: int) -> None:
        mr, size = self._buffers[qp_num], self.config.recv[1]
        sge = SGE(mr.va + slot * size, size, mr.lkey)
        self._connections[qp_num].qp.post_recv(RecvWR(slot, (sge,)))

    def _completed(self, completion: WC) -> None:
        """A receive completed: show it, and post it again.

        What a disconnect flushes says nothing and is not shown.
        """
        if self._connections[completion.qp_num].closed.is_set() or self.stopping.is_set():
            return
        result = {}
        good = completion.status is WCStatus.IBV_WC_SUCCESS
        if good and completion.opcode is WCOpcode.IBV_WC_RECV:
            offset = completion.wr_id * self.config.recv[1]
            mr = self._buffers[completion.qp_num]
            result["data"] = mr.read(offset, completion.byte_len).hex()
        self.report("completion", **completion_record(completion, **result))
        if good:
            self._post_receive(completion.qp_num, completion.wr_id)

    def _connections_changed(self, event: Event) -> None:
        if not isinstance(event, Established | Disconnected | Rejected | ConnectFailed):
            return
        cm, qp = event.connection, event.connection.qp
        if qp is None:
            return
        if isinstance(event, Established):
            self.report(
                "connected",
                qp_num=qp.qp_num,
                remote_qp_num=cm.remote_qpn,
                peer=cm.peer_address,
                mrs=[region_state(mr) for mr in self.regions.values()],
            )
        elif self._connections.pop(qp.qp_num, None) is not None:
            if isinstance(event, Disconnected):
                self.report("disconnected", qp_num=qp.qp_num, peer=cm.peer_address)
            buffer = self._buffers.pop(qp.qp_num, None)
            if buffer is not None:
                self.nic.device.dereg_mr(buffer)

    # ------------------------------------------------------------------ control

    def _register(self, spec: str) -> list[dict[str, Any]]:
        wanted = RegionSpec.parse(spec)
        if wanted.name in (*self.regions, DIRECTORY_NAME):
            raise ControlError(f"there is a region {wanted.name!r} already")
        mr = wanted.register(self.nic.device, self.domain_of(wanted.name))
        self.regions[wanted.name] = mr
        self._advertise()
        return [{"object": "mr", "lkey": mr.lkey, **region_state(mr)}]

    def _deregister(self, name: str) -> list[dict[str, Any]]:
        self.nic.device.dereg_mr(self.region(name))
        del self.regions[name]
        self._advertise()
        return []

    def _advertise(self) -> None:
        if not self.config.static:
            self.listener.expose(self.regions.values())
