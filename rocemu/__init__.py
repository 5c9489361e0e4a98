"""rocemu: an RDMA NIC in software that speaks RoCEv2 on UDP 4791.

The names below are the library; they are loaded when they are first used::

    async with await rocemu.Nic.open("127.0.0.2") as nic:
        async with await rocemu.connect(nic, "127.0.0.1") as connection:
            print(await connection.read(connection.regions["rw"], 14))
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rocemu.net import (
        CompletionError,
        Connection,
        IcrcPolicy,
        Listener,
        NetError,
        Nic,
        RemoteRegion,
        connect,
        listen,
    )
    from rocemu.protection import MemoryRegion, ProtectionDomain, RegistrationError, Verdict
    from rocemu.transport import SGE, WC, Device, QPError, RecvWR, SendWR
    from rocemu.verbs import AccessFlags, AsyncEventType, QPState, SendFlags, WCStatus, WROpcode

_HOMES = {
    "rocemu.net": (
        "CompletionError Connection IcrcPolicy Listener NetError Nic RemoteRegion connect listen"
    ),
    "rocemu.protection": "MemoryRegion ProtectionDomain RegistrationError Verdict",
    "rocemu.transport": "SGE WC Device QPError RecvWR SendWR",
    "rocemu.verbs": "AccessFlags AsyncEventType QPState SendFlags WCStatus WROpcode",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "SGE",
    "WC",
    "AccessFlags",
    "AsyncEventType",
    "CompletionError",
    "Connection",
    "Device",
    "IcrcPolicy",
    "Listener",
    "MemoryRegion",
    "NetError",
    "Nic",
    "ProtectionDomain",
    "QPError",
    "QPState",
    "RecvWR",
    "RegistrationError",
    "RemoteRegion",
    "SendFlags",
    "SendWR",
    "Verdict",
    "WCStatus",
    "WROpcode",
    "connect",
    "listen",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that ``import rocemu`` costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'rocemu' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
