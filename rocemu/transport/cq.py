"""Completion queues ([IBTA] 11.2.8)."""

from collections import deque

from rocemu.transport.work import WC

__all__ = ["CompletionQueue"]


class CompletionQueue:
    """A bounded queue of completions, oldest first."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._entries: deque[WC] = deque()
        self.overrun = False
        """Set when a completion found no room: it is lost, nothing more is put in, and the queue
        pairs that use the CQ go to ERR."""

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
