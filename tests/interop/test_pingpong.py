"""``ibv_rc_pingpong`` in the guest against a server in place of its own, out of band data too."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

import pytest

from rocemu.verbs import MTU
from tests.interop.cases import SEND
from tests.interop.sides import HOST4, PATIENCE, Command, Link, Receive, Rocemu, Send, Setup, gid_of

pytestmark = [pytest.mark.needs_interop, pytest.mark.usefixtures("kernel")]

PORT = 18515
SIZE, ITERATIONS = 4096, 200
OUR_PSN = 0xFFFFF0  # it wraps on the way


class Client:
    """The other end as :meth:`Rocemu.connect` wants it, from the line that the client sends."""

    def __init__(self, hello: bytes) -> None:
        _, qpn, psn, gid = hello.rstrip(b"\0").decode().split(":")
        self.qpn, self.psn = int(qpn, 16), int(psn, 16)
        ip = ip_address(int(gid, 16).to_bytes(16, "big"))
        self.address = str(ip.ipv4_mapped or ip)


async def serve(listener: socket.socket, server: Rocemu) -> None:
    """Answer every message with one of the same size, which is what the client checks."""
    loop = asyncio.get_running_loop()
    sock, _ = await loop.sock_accept(listener)
    reader, writer = await asyncio.open_connection(sock=sock)
    client = Client(await reader.readexactly(52))
    await server.open(Setup(size=SIZE, recv_size=SIZE))
    await server.write("source", b"{" * SIZE)
    await server.receive(*(Receive(n, SIZE) for n in range(ITERATIONS)))
    await server.connect(client, Link(client.psn, OUR_PSN, mtu=MTU.IBV_MTU_1024, retry=7))
    gid = gid_of(server.address).hex()
    writer.write(f"{0:04x}:{server.qpn:06x}:{OUR_PSN:06x}:{gid}\0".encode())
    assert await reader.readexactly(5) == b"done\0"
    writer.close()
    for n in range(ITERATIONS):
        (received,) = await server.poll("recv", 1)
        assert (received.wr_id, received.status) == (n, "IBV_WC_SUCCESS")
        assert received.byte_len == SIZE
        await server.send(Send(n, SEND, SIZE))
    assert [c.status for c in await server.poll("send", ITERATIONS)] == (
        ["IBV_WC_SUCCESS"] * ITERATIONS
    )


async def test_pingpong_client() -> None:
    server = Rocemu()
    words = ("ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-c", "-e", "-r", "50")
    words += ("-s", str(SIZE), "-n", str(ITERATIONS), HOST4)
    with socket.create_server((HOST4, PORT)) as listener:
        listener.setblocking(False)
        try:
            async with Command(words) as client:
                await asyncio.wait_for(serve(listener, server), PATIENCE)
                code, output = await client.ended()
        finally:
            await server.close()
    assert code == 0, output
    assert f"{ITERATIONS} iters" in output
