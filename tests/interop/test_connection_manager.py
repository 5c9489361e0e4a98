"""librdmacm's own programs in the guest against connections of rocemu, in both directions."""

from __future__ import annotations

import asyncio
import struct
import time

import pytest

from rocemu.net import Connection, Listener, NetError, Nic, RemoteRegion, connect, listen
from rocemu.verbs import AccessFlags
from tests.interop.sides import ALL, GUEST4, GUEST6, HOST4, HOST6, PATIENCE, Command
from tests.interop.wiretap import Wiretap

pytestmark = [pytest.mark.needs_interop, pytest.mark.usefixtures("kernel")]

RPING_PORT, UCMATOSE_PORT = 7174, 7471
PINGS, SIZE = 20, 3000
FAMILIES = pytest.mark.parametrize(
    ("host", "guest"), [(HOST4, GUEST4), (HOST6, GUEST6)], ids=["IPv4", "IPv6"]
)
_ADVERTISEMENT = struct.Struct(">QII")  # address, R_Key, size: rping's struct rping_rdma_info


def advertised(message: bytes) -> RemoteRegion:
    va, rkey, size = _ADVERTISEMENT.unpack(message)
    return RemoteRegion("", va, size, rkey, AccessFlags(0))


async def accepted(listener: Listener, receives: list[int]) -> tuple[Connection, list]:
    """The next connection, with receives posted before its peer can send."""
    posted: list[asyncio.Task] = []

    def post(connection: Connection) -> None:
        posted.extend(asyncio.ensure_future(connection.receive(size)) for size in receives)

    listener.on_accept = post
    return await asyncio.wait_for(anext(listener), PATIENCE), posted


async def serve_rping(nic: Nic, pings: int) -> list[bytes]:
    """rping's server: reads the client's ping from its memory, writes it back to other memory."""
    connection, posted = await accepted(listen(nic, RPING_PORT), [16] * pings * 2)
    got = []
    for number in range(pings):
        source = advertised((await posted[2 * number])[0])
        got.append(await connection.read(source, source.length))
        await connection.send(bytes(16))
        sink = advertised((await posted[2 * number + 1])[0])
        await connection.write(sink, got[-1])
        await connection.send(bytes(16))
    await asyncio.wait_for(connection.closed.wait(), PATIENCE)
    return got


@FAMILIES
async def test_rping_client_against_our_server(host: str, guest: str) -> None:
    words = ("rping", "-c", "-a", host, "-C", str(PINGS), "-S", str(SIZE), "-v", "-V")
    async with await Nic.open(host) as nic:
        server = asyncio.create_task(serve_rping(nic, PINGS))
        await asyncio.sleep(0)  # the server listens
        async with Command(words) as client:
            code, output = await client.ended()
            got = await asyncio.wait_for(server, PATIENCE)
    assert code == 0, output
    assert output.count("ping data: rdma-ping-") == PINGS
    assert [ping[:16] for ping in got] == [
        f"rdma-ping-{number}: ".encode().ljust(16, b"?")[:13] + ping[13:16]
        for number, ping in enumerate(got)
    ]


async def connected(nic: Nic, guest: str, port: int) -> Connection:
    """Connect as soon as the program in the guest listens."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await connect(nic, guest, port)
        except NetError as error:
            if "nobody listens" not in str(error) or time.monotonic() > end:
                raise


@FAMILIES
async def test_our_client_against_rping_server(host: str, guest: str) -> None:
    async with (
        await Nic.open(host) as nic,
        Command(("sh", "-c", f"exec rping -s -a {guest} -S {SIZE} -v 2>/dev/null")) as server,
    ):
        pings = [f"rdma-ping-{n}: ".encode().ljust(SIZE - 1, b"x") + b"\0" for n in range(PINGS)]
        async with await connected(nic, guest, RPING_PORT) as connection:
            source = nic.device.reg_mr(connection.qp.pd, SIZE, ALL)
            sink = nic.device.reg_mr(connection.qp.pd, SIZE, ALL)
            for ping in pings:
                source.memory[:] = ping
                for mr in (source, sink):
                    answer = asyncio.ensure_future(connection.receive(16))
                    await asyncio.sleep(0)  # it is posted
                    await connection.send(_ADVERTISEMENT.pack(mr.va, mr.rkey, SIZE))
                    await asyncio.wait_for(answer, PATIENCE)
                assert bytes(sink.memory) == ping
        code, output = await server.ended()
    assert code == 0, output
    assert output.count("server ping data: rdma-ping-") == PINGS


@FAMILIES
async def test_ucmatose_client_against_our_server(host: str, guest: str) -> None:
    """Ten messages from the server, then ten from the client; the server disconnects."""
    async with await Nic.open(host) as nic, Command(("ucmatose", "-s", host)) as client:
        connection, posted = await accepted(listen(nic, UCMATOSE_PORT), [100] * 10)
        for _ in range(10):
            await connection.send(bytes(100))
        messages = await asyncio.wait_for(asyncio.gather(*posted), PATIENCE)
        assert [len(data) for data, _ in messages] == [100] * 10
        await asyncio.wait_for(connection.disconnect(), PATIENCE)
        code, output = await client.ended()
    assert code == 0, output
    assert "return status 0" in output


@FAMILIES
async def test_our_client_against_ucmatose_server(host: str, guest: str) -> None:
    async with (
        await Nic.open(host) as nic,
        Command(("ucmatose", "-b", guest)) as server,
    ):
        async with await connected(nic, guest, UCMATOSE_PORT) as connection:
            messages = await asyncio.wait_for(
                asyncio.gather(*(connection.receive(100) for _ in range(10))), PATIENCE
            )
            assert [len(data) for data, _ in messages] == [100] * 10
            for _ in range(10):
                await connection.send(bytes(100))
        code, output = await server.ended()
    assert code == 0, output
    assert "return status 0" in output


async def test_the_kernel_client_is_told_that_nobody_listens() -> None:
    async with await Nic.open(HOST4), Command(("rping", "-c", "-a", HOST4, "-C", "1")) as client:
        code, output = await client.ended()
    assert code != 0
    assert "RDMA_CM_EVENT_REJECTED" in output
    assert "status 8" in output.replace("error 8", "status 8")  # REJ reason: invalid service ID


async def test_our_client_is_told_that_nobody_listens() -> None:
    async with await Nic.open(HOST4) as nic:
        with pytest.raises(NetError, match="nobody listens on CM port 4444 there"):
            await connect(nic, GUEST4, 4444)


@FAMILIES
async def test_a_lost_connection_message_is_sent_again(
    host: str, guest: str, wire: Wiretap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of each of our MADs does not leave."""
    async with await Nic.open(host) as nic, Command(("ucmatose", "-b", guest)) as server:
        seen: set[bytes] = set()
        send_mad = nic.device.send_mad

        def lossy(destination: str, mad: bytes) -> None:
            attribute = mad[16:18]
            if attribute in seen:
                send_mad(destination, mad)
            seen.add(attribute)

        monkeypatch.setattr(nic.device, "send_mad", lossy)
        connection = await connected(nic, guest, UCMATOSE_PORT)
        received = asyncio.gather(*(connection.receive(100) for _ in range(10)))
        await asyncio.wait_for(received, PATIENCE)
        for _ in range(10):
            await connection.send(bytes(100))
        await connection.disconnect()
        code, output = await server.ended()
    assert code == 0, output
