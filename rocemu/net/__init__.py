"""Sockets and clock around the transport: the asyncio NIC and its connections."""

from rocemu.net.advert import RemoteRegion
from rocemu.net.connection import DEFAULT_PORT, CompletionError, Connection, connect
from rocemu.net.listener import Listener, listen
from rocemu.net.nic import IcrcPolicy, Nic
from rocemu.net.rules import FaultError, FaultRule
from rocemu.net.sockets import NetError, checked_mtu, largest_mtu, resolve, source_address

__all__ = [
    "DEFAULT_PORT",
    "CompletionError",
    "Connection",
    "FaultError",
    "FaultRule",
    "IcrcPolicy",
    "Listener",
    "NetError",
    "Nic",
    "RemoteRegion",
    "checked_mtu",
    "connect",
    "largest_mtu",
    "listen",
    "resolve",
    "source_address",
]
