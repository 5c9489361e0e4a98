"""Completion queues ([IBTA] 11.2.8)."""

from collections import deque

from rocemu.transport.work import WC
from rocemu.verbs import WCStatus

__all__ = ["CompletionQueue"]


class CompletionQueue:
    """A bounded queue of completions, oldest first."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._entries: deque[WC] = deque()
        self.overrun = False
        """Set when a completion found no room: it is lost, nothing more is put in, and the queue
        pairs that use the CQ go to ERR."""

        self._armed = False
        self._solicited_only = False

    def __len__(self) -> int:
        return len(self._entries)

    def poll(self, count: int = 1) -> list[WC]:
        """Up to ``count`` completions, removed from the queue."""
        entries = self._entries
        return [entries.popleft() for _ in range(min(count, len(entries)))]

    def push(self, completion: WC) -> bool:
        """Add a completion; False when the queue is full (the overrun is remembered)."""
        if len(self._entries) >= self.depth:
            self.overrun = True
            return False
        self._entries.append(completion)
        return True

    def request_notify(self, *, solicited_only: bool = False) -> None:
        """Tell the next completion by a CompletionEvent, once (``ibv_req_notify_cq``).

        With ``solicited_only`` only one in error, or of a message sent as solicited, counts.
        """
        self._solicited_only = solicited_only and (self._solicited_only or not self._armed)
        self._armed = True

    def notifies(self, completion: WC, *, solicited: bool) -> bool:
        """Whether a completion that was pushed is the one to tell of; disarms if so."""
        wanted = solicited or completion.status is not WCStatus.IBV_WC_SUCCESS
        if not self._armed or (self._solicited_only and not wanted):
            return False
        self._armed = False
        return True
