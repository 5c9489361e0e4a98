"""Protection domains: what ties queue pairs to the regions they may use (``man ibv_alloc_pd``)."""

__all__ = ["PDInUseError", "ProtectionDomain"]

_PAGE = 4096


class PDInUseError(RuntimeError):
    """A protection domain can't go while something lives in it (EBUSY of ``ibv_dealloc_pd``)."""


class ProtectionDomain:
    """A protection domain, known by its ``handle``.

    ``users`` counts the regions, windows and queue pairs in it; whoever makes one adds to it.
    """

    __slots__ = ("_next_va", "deallocated", "handle", "users")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.users = 0
        self.deallocated = False
        self._next_va = (handle + 1) << 40

    def place(self, length: int) -> int:
        """An address for ``length`` bytes: page-aligned, used once, an unused page behind it.

        Counted up from a base of the domain's own, so that addresses repeat from run to run and
        say nothing about the process.
        """
        va = self._next_va
        self._next_va += (length + 2 * _PAGE - 1) // _PAGE * _PAGE
        return va

    def dealloc(self) -> None:
        """End the domain: nothing can be made in it any more.

        Raises :class:`PDInUseError` while it has users, and leaves it as it was.
        """
        if self.users:
            raise PDInUseError(
                f"PD {self.handle} is in use by {self.users} regions, windows or queue pairs"
            )
        self.deallocated = True

    def __repr__(self) -> str:
        return f"ProtectionDomain({self.handle}, users={self.users})"
