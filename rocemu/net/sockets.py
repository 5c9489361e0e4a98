"""Prepared UDP sockets: what the kernel must be told so that the ICRC comes out right.

The ICRC covers the IPv4 identification and the DF flag, which the kernel writes.  An *unconnected*
socket with IP_PMTUDISC_DO sends ID 0 with DF, always (measured on Linux 6.18), so a sender can
compute the ICRC beforehand; connect() would break that.  Elsewhere than on Linux these options do
not exist: peers that solve for the ID (rocemu does) take the packets all the same.
"""

import errno
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from rocemu.verbs import MTU, mtu_bytes
from rocemu.wire import ROCE_PORT

__all__ = [
    "NetError",
    "SocketFault",
    "bind_receiver",
    "bind_sender",
    "checked_mtu",
    "largest_mtu",
    "read_faults",
    "resolve",
    "set_ip_fields",
    "source_address",
]

_LINUX = sys.platform == "linux"
# Linux option numbers that Python's socket module does not name.
_IP_MTU_DISCOVER, _IP_PMTUDISC_DO = 10, 2
_IPV6_MTU_DISCOVER = 23
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_IP_MTU, _IPV6_MTU = 14, 24
_SO_NO_CHECK = 11
_UDP_NO_CHECK6_RX = 102

_BUFFER = 4 << 20
_FIRST_PORT, _LAST_PORT = 0xC000, 0xFFFF
#: Bytes around the payload of a WRITE with immediate, the most that a full packet has: UDP, BTH,
#: RETH, ImmDt, ICRC; the IP header comes on top.
_AROUND = 8 + 12 + 16 + 4 + 4

# struct sock_extended_err: errno, origin, type, code, pad, info, data
_EXTENDED_ERROR = struct.Struct("=IBBBBII")


class NetError(OSError):
    """The network does not do what was asked; ``str()`` is a sentence with address and port."""


def resolve(host: str, family: int = socket.AF_UNSPEC) -> str:
    """An IP address in text for a name or address; raises :class:`NetError` when there is none."""
    try:
        found = socket.getaddrinfo(host, ROCE_PORT, family, socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError) as error:
        wanted = "IPv6" if family == socket.AF_INET6 else "IPv4"
        raise NetError(f"{host!r} has no {wanted} address") from error
    return str(found[0][4][0])


def _open(address: str) -> socket.socket:
    """A non-blocking UDP socket of the address's family with the options that both kinds need."""
    ipv6 = ":" in address
    sock = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    if _LINUX:
        level, option = (
            (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER)
            if ipv6
            else (socket.IPPROTO_IP, _IP_MTU_DISCOVER)
        )
        sock.setsockopt(level, option, _IP_PMTUDISC_DO)
        if ipv6:  # rxe sends checksum 0 over IPv6, which Linux drops unless it is told not to
            sock.setsockopt(socket.IPPROTO_UDP, _UDP_NO_CHECK6_RX, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
    return sock


def _bind(sock: socket.socket, address: str, port: int) -> None:
    try:
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        why = {
            errno.EADDRINUSE: "is in use, by another rocemu or by the kernel's rdma_rxe",
            errno.EADDRNOTAVAIL: "cannot be bound: the address is not one of this host",
            errno.EACCES: "cannot be bound: permission denied",
        }.get(error.errno or 0, f"cannot be bound: {error.strerror}")
        raise NetError(f"UDP port {port} of {address} {why}") from error


def bind_receiver(address: str) -> socket.socket:
    """The socket on UDP 4791 of ``address``; raises :class:`NetError`.

    The address must be one of this host and no wildcard: it is part of every ICRC.
    """
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        raise NetError(
            f"{address} is no address to bind: the ICRC covers it, name one of this host"
        )
    sock = _open(address)
    _bind(sock, address, ROCE_PORT)
    return sock


def bind_sender(address: str, port: int) -> socket.socket:
    """A socket that sends from ``port``, or from the next free one of 49152-65535.

    ICMP errors about what it sent are kept for :func:`read_faults` (Linux).  Raises
    :class:`NetError` when no port is free.
    """
    for candidate in (*range(port, _LAST_PORT + 1), *range(_FIRST_PORT, port)):
        sock = _open(address)
        try:
            sock.bind((address, candidate))
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise NetError(f"cannot send from {address}: {error.strerror}") from error
            continue
        if _LINUX:
            level, option = (
                (socket.IPPROTO_IPV6, _IPV6_RECVERR)
                if sock.family == socket.AF_INET6
                else (socket.IPPROTO_IP, _IP_RECVERR)
            )
            sock.setsockopt(level, option, 1)
        return sock
    raise NetError(f"all source ports of {address} from {_FIRST_PORT} to {_LAST_PORT} are taken")


def set_ip_fields(sock: socket.socket, tos: int, ttl: int) -> None:
    """Set TOS and TTL (traffic class and hop limit) of what a socket sends from now on."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, ttl)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)


class SocketFault(NamedTuple):
    """An ICMP error, or the kernel's own, about a datagram that was sent to ``destination``."""

    errno: int
    destination: str


def read_faults(sock: socket.socket) -> Iterator[SocketFault]:
    """Empty a sender's error queue (Linux; elsewhere there is none)."""
    if not _LINUX:
        return
    while True:
        try:
            _, ancillary, _, address = sock.recvmsg(0, 512, socket.MSG_ERRQUEUE)
        except OSError:
            return
        for _, kind, data in ancillary:
            if kind in (_IP_RECVERR, _IPV6_RECVERR) and len(data) >= _EXTENDED_ERROR.size:
                number = _EXTENDED_ERROR.unpack_from(data)[0]
                yield SocketFault(number, address[0].partition("%")[0])


def source_address(destination: str) -> str:
    """The address of this host that packets to ``destination`` leave from; raises NetError.

    To an IPv4 loopback address that is the next one, for a peer on this host has that one taken.
    """
    sock = socket.socket(
        socket.AF_INET6 if ":" in destination else socket.AF_INET, socket.SOCK_DGRAM
    )
    with sock:
        try:
            sock.connect((destination, ROCE_PORT))
        except OSError as error:
            raise NetError(f"no way to {destination}: {error.strerror}") from error
        source = str(sock.getsockname()[0])
    address = ipaddress.ip_address(source)
    if source == destination and address.version == 4 and address.is_loopback:
        return str(address + 1)
    return source


def checked_mtu(source: str, destination: str, wanted: MTU | None) -> MTU:
    """``wanted`` if its packets fit the way, the largest that do for None; raises NetError."""
    most = largest_mtu(source, destination)
    if wanted is not None and wanted > most:
        fits = f"{mtu_bytes(most)} is the most"
        raise NetError(
            f"path MTU {mtu_bytes(wanted)} is too much for the way to {destination}: {fits}"
        )
    return wanted or most


def largest_mtu(source: str, destination: str) -> MTU:
    """The largest path MTU whose packets fit the route's MTU unfragmented.

    Raises :class:`NetError` when there is no route from ``source``.  Nothing is sent.
    """
    ipv6 = ":" in source
    sock = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        try:
            sock.bind((source, 0))
            sock.connect((destination, ROCE_PORT))
            if not _LINUX:
                return MTU.IBV_MTU_1024
            level, option = (
                (socket.IPPROTO_IPV6, _IPV6_MTU) if ipv6 else (socket.IPPROTO_IP, _IP_MTU)
            )
            link = sock.getsockopt(level, option)
        except OSError as error:
            raise NetError(f"no way from {source} to {destination}: {error.strerror}") from error
    room = link - (40 if ipv6 else 20) - _AROUND
    fitting = [mtu for mtu in MTU if mtu_bytes(mtu) <= room]
    if not fitting:
        raise NetError(f"the path to {destination} has MTU {link}: too small for any path MTU")
    return fitting[-1]
