"""Shared receive queues ([IBTA] 10.2.9)."""

from collections import deque
from typing import TYPE_CHECKING

from rocemu.protection import ProtectionDomain
from rocemu.transport.errors import QPError
from rocemu.transport.events import SRQEvent
from rocemu.transport.work import RecvWR, check_numbers
from rocemu.verbs import AsyncEventType

if TYPE_CHECKING:
    from rocemu.transport.device import Device

__all__ = ["SharedReceiveQueue"]


class SharedReceiveQueue:
    """Receives for any queue pair that was made with it; made by :meth:`Device.create_srq`."""

    def __init__(
        self, device: "Device", number: int, pd: ProtectionDomain, max_wr: int, max_sge: int
    ) -> None:
        self.number = number
        self.pd = pd
        self.limit = 0
        """IBV_EVENT_SRQ_LIMIT_REACHED is raised once when fewer receives than this are left."""
        self._device = device
        self._max_wr = max_wr
        self._max_sge = max_sge
        self._receives: deque[RecvWR] = deque()

    def __len__(self) -> int:
        return len(self._receives)

    def post_recv(self, wr: RecvWR) -> None:
        """Queue a receive (``ibv_post_srq_recv``); raises QPError when full or malformed."""
        if len(self._receives) >= self._max_wr:
            raise QPError(f"shared receive queue full: max_wr is {self._max_wr}")
        if len(wr.sg_list) > self._max_sge:
            raise QPError(f"{len(wr.sg_list)} elements: max_sge is {self._max_sge}")
        check_numbers(wr)
        self._receives.append(wr)

    def arm(self, limit: int) -> None:
        """Set the limit (``ibv_modify_srq`` with IBV_SRQ_LIMIT); raises QPError out of range."""
        if not 0 <= limit <= self._max_wr:
            raise QPError(f"srq_limit {limit}: allowed are 0 to {self._max_wr}")
        self.limit = limit
        self._tell_limit()

    def take(self) -> RecvWR | None:
        """The oldest receive, None when there is none; may raise the limit event."""
        if not self._receives:
            return None
        wr = self._receives.popleft()
        self._tell_limit()
        return wr

    def _tell_limit(self) -> None:
        if len(self._receives) < self.limit:
            self.limit = 0
            event = AsyncEventType.IBV_EVENT_SRQ_LIMIT_REACHED
            self._device.emit(SRQEvent(event, self.number))
