"""Memory regions: a buffer, the addresses it is known by, and what may be done to it."""

import struct
from mmap import mmap

from rocemu.protection.access import SUPPORTED_ACCESS, format_access
from rocemu.protection.pd import ProtectionDomain
from rocemu.verbs import AccessFlags

__all__ = ["Buffer", "FastRegion", "MemoryRegion", "RegionInUseError", "RegistrationError"]

#: What a region can be made of; it is used in place, never copied.
Buffer = bytearray | memoryview | mmap

_ADDRESS_SPACE = 1 << 64
_LOCAL_WRITE = AccessFlags.IBV_ACCESS_LOCAL_WRITE
_ZERO_BASED = AccessFlags.IBV_ACCESS_ZERO_BASED

#: Whoever may write from afar may write at home (``man ibv_reg_mr``).
_NEED_LOCAL_WRITE = (
    AccessFlags.IBV_ACCESS_REMOTE_WRITE,
    AccessFlags.IBV_ACCESS_REMOTE_ATOMIC,
)
#: Bits 20 to 29 are hints that a device may ignore (``IBV_ACCESS_OPTIONAL_RANGE``).
_OPTIONAL = 0x3FF00000

# An atomic works on the host's own order; the emulated host is little-endian.
_WORD = struct.Struct("<Q")


class RegistrationError(ValueError):
    """A region can't be registered like this (EINVAL of ``ibv_reg_mr``); ``str()`` says why."""


class RegionInUseError(RuntimeError):
    """A region can't go or change while windows are bound to it (EBUSY)."""


class MemoryRegion:
    """A region of memory in a protection domain.

    ``memory`` is a flat view of bytes on ``buffer`` (or on new zeroed memory when an int length is
    given).  ``va`` is the address of its first byte to the holder of a key: as given, 0 with
    IBV_ACCESS_ZERO_BASED, else the next free address of the domain.  ``lkey`` and ``rkey`` are 0
    until :meth:`ProtectionTable.register` and stay readable after deregistration.

    Raises :class:`RegistrationError` for flags that don't go together, flags that are not
    supported, a range that passes 2^64, or a buffer that can't be used.
    """

    __slots__ = (
        "_buffer",
        "access",
        "length",
        "lkey",
        "memory",
        "name",
        "pd",
        "rkey",
        "va",
        "windows",
    )

    def __init__(
        self,
        pd: ProtectionDomain,
        buffer: Buffer | int,
        access: AccessFlags,
        *,
        va: int | None = None,
        name: str = "",
    ) -> None:
        self.pd = pd
        self.access = AccessFlags(access)
        self.name = name
        self.lkey = 0
        self.rkey = 0
        self.windows = 0  # bound to it
        _check_flags(self.access)
        self._buffer = buffer
        self.memory = _flat_view(buffer)
        self.length = len(self.memory)
        if self.memory.readonly and self.access & _LOCAL_WRITE:
            raise RegistrationError("IBV_ACCESS_LOCAL_WRITE: the buffer is read-only")
        self.va = self._address(va)

    def _address(self, va: int | None) -> int:
        if self.access & _ZERO_BASED:
            if va:
                raise RegistrationError(f"IBV_ACCESS_ZERO_BASED: va is 0, not {va:#x}")
            return 0
        if va is None:
            va = self.pd.place(self.length)
        if not 0 <= va <= _ADDRESS_SPACE - self.length:
            raise RegistrationError(f"va {va:#x}+{self.length} is not inside 64 bits")
        return va

    def adopt(self, other: "MemoryRegion", *, buffer: bool) -> None:
        """Become what ``other``, not registered itself, describes; its buffer too on request."""
        self.pd, self.access, self.va = other.pd, other.access, other.va
        if buffer:
            self._buffer, self.memory, self.length = other._buffer, other.memory, other.length

    def view(self, offset: int, n: int) -> memoryview:
        """``n`` bytes from ``offset`` on, in place; raises IndexError outside the region."""
        if (offset < 0) | (n < 0) | (offset + n > self.length):
            raise IndexError(f"{offset}+{n} is outside a region of {self.length} bytes")
        return self.memory[offset : offset + n]

    def read(self, offset: int, n: int) -> bytes:
        """A copy of ``n`` bytes from ``offset`` on; raises IndexError outside the region."""
        return bytes(self.view(offset, n))

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Put ``data`` at ``offset``; raises IndexError, and writes nothing, unless all of it fits.

        This is the memory itself, with no access check: TypeError only for a read-only buffer.
        """
        self.view(offset, len(data))[:] = data

    def flush(self) -> None:
        """Write a mapped file's changes back to it; nothing for other memory."""
        if isinstance(self._buffer, mmap):
            self._buffer.flush()

    def load64(self, offset: int) -> int:
        """The 64-bit integer at ``offset`` in the host's order; raises IndexError outside."""
        return int(_WORD.unpack(self.view(offset, 8))[0])

    def store64(self, offset: int, value: int) -> None:
        """Put ``value`` modulo 2^64 at ``offset`` in the host's order; IndexError outside."""
        _WORD.pack_into(self.view(offset, 8), 0, value % _ADDRESS_SPACE)

    def __repr__(self) -> str:
        label = f"{self.name!r}, " if self.name else ""
        return (
            f"MemoryRegion({label}{self.va:#x}+{self.length}, {format_access(self.access)}, "
            f"lkey={self.lkey:#010x}, rkey={self.rkey:#010x}, pd={self.pd.handle})"
        )


class FastRegion(MemoryRegion):
    """A region of up to ``max_length`` bytes that work requests open and close (``ib_alloc_mr``).

    :meth:`map` says what memory it stands for; a REG_MR work request opens it with the rights and
    the low key byte of its poster's choice, LOCAL_INV or a peer's SEND with Invalidate closes it.
    """

    __slots__ = ("max_length", "open")

    def __init__(self, pd: ProtectionDomain, max_length: int, *, name: str = "") -> None:
        if max_length < 0:
            raise RegistrationError(f"length {max_length} is negative")
        super().__init__(pd, 0, AccessFlags(0), name=name)
        self.max_length = max_length
        self.open = False

    def map(self, buffer: Buffer, *, va: int | None = None) -> None:
        """Stand for ``buffer`` from the next REG_MR on (``ib_map_mr_sg``).

        Raises :class:`RegistrationError` while the region is open, or for a buffer too long.
        """
        if self.open:
            raise RegistrationError(f"{self!r} is registered: invalidate it first")
        other = MemoryRegion(self.pd, buffer, AccessFlags(0), va=va)
        if other.length > self.max_length:
            raise RegistrationError(f"{other.length} bytes: at most {self.max_length}")
        self.adopt(other, buffer=True)

    def check_rights(self, access: AccessFlags) -> None:
        """Raise :class:`RegistrationError` for rights that the region cannot be opened with."""
        _check_flags(access)
        if access & _ZERO_BASED:
            raise RegistrationError("IBV_ACCESS_ZERO_BASED: give map() the address")
        if self.memory.readonly and access & _LOCAL_WRITE:
            raise RegistrationError("IBV_ACCESS_LOCAL_WRITE: the buffer is read-only")


def _check_flags(access: AccessFlags) -> None:
    # As integers: the complement of an IntFlag knows only the bits that have a name.
    unsupported = AccessFlags(int(access) & ~int(SUPPORTED_ACCESS | _OPTIONAL))
    if unsupported:
        raise RegistrationError(f"access flag {format_access(unsupported)} is not supported")
    for flag in _NEED_LOCAL_WRITE:
        if access & flag and not access & _LOCAL_WRITE:
            raise RegistrationError(f"{flag.name} requires IBV_ACCESS_LOCAL_WRITE")


def _flat_view(buffer: Buffer | int) -> memoryview:
    if isinstance(buffer, int):
        if buffer < 0:
            raise RegistrationError(f"length {buffer} is negative")
        return memoryview(bytearray(buffer))
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise RegistrationError("the buffer is not contiguous")
    # An empty view of several dimensions can't be cast; nothing can be reached in it anyway.
    return view.cast("B") if view.nbytes else memoryview(bytearray())
