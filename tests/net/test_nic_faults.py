"""Faults in a NIC: what leaves and what comes in meets the rules; captures and counters tell."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rocemu.capture import Direction, EndpointCapture, read_capture
from rocemu.net import Connection, FaultRule, Nic, connect, listen
from rocemu.protection import MemoryRegion, SeededKeys
from rocemu.transport import Drop
from rocemu.verbs import MTU, WCStatus
from rocemu.wire import BTH
from tests.net.pair import ALL, PATIENCE, Log, next_address, tapped

LONG = bytes(range(256)) * 10


class Ends:
    """A client connected to a server under faults, a region ``rw`` at the server."""

    def __init__(self, server: Nic, client: Nic, connection: Connection, rw: MemoryRegion) -> None:
        self.server, self.client, self.connection, self.rw = server, client, connection, rw
        self.target = connection.regions["rw"]


@asynccontextmanager
async def ends(
    *,
    client: tuple[str, ...] = (),
    server: tuple[str, ...] = (),
    addresses: tuple[str, str] | None = None,
    folder: Path | None = None,
) -> AsyncIterator[Ends]:
    addresses = addresses or (next_address(), next_address())
    nics = []
    for name, address, rules in zip("sc", addresses, (server, client), strict=True):
        capture = EndpointCapture.create(folder / name, name=name) if folder else None
        nic = await Nic.open(
            address,
            seed=7,
            keys=SeededKeys(b"faults"),
            capture=capture,
            faults=[FaultRule.parse(rule) for rule in rules],
        )
        nics.append(nic)
    async with nics[0] as serving, nics[1] as asking:
        pd = serving.device.alloc_pd()
        rw = serving.device.reg_mr(pd, 1 << 16, ALL, name="rw", va=0x10000)
        listener = listen(serving, pd=pd, expose=[rw])
        connection = await connect(asking, addresses[0], mtu=MTU.IBV_MTU_256)
        accepted = await anext(listener)
        async with asyncio.timeout(PATIENCE):
            yield Ends(serving, asking, connection, rw)
            await connection.disconnect()
            await accepted.closed.wait()


C71 = {"client": ("drop tx opcode=WRITE nth=5",), "server": ("bad-icrc tx opcode=ACK nth=2",)}


def frames(file: Path) -> list[tuple[bytes, tuple[str, ...]]]:
    with file.open("rb") as stream:
        return [
            (packet.data, packet.comments)
            for packet in read_capture(stream)
            if packet.direction is Direction.OUT
        ]


async def test_the_same_seed_gives_the_same_capture_and_every_byte_arrives(tmp_path: Path) -> None:
    """The fifth packet of a long WRITE is lost, the second ACK has a wrong ICRC; twice."""
    addresses = next_address(), next_address()
    captures = []
    for run in ("first", "second"):
        folder = tmp_path / run
        folder.mkdir()
        async with ends(addresses=addresses, folder=folder, **C71) as both:
            await both.connection.write(both.target, LONG)
            assert both.rw.read(0, len(LONG)) == LONG
            await both.connection.write(both.target, b"again")  # its ACK is the second
            assert both.client.device.counters["fault_drop"] == 1
            assert both.client.device.counters["icrc"] == 1
            assert both.server.device.counters["fault_bad_icrc"] == 1
        captures.append([frames(folder / name) for name in "sc"])
    assert captures[0] == captures[1]
    server, client = captures[0]
    dropped = [data for data, comments in client if comments]
    assert [comments for _, comments in client if comments] == [
        ("fault: dropped by 'drop tx opcode=WRITE nth=5'",)
    ]
    assert [c for _, c in server if c] == [
        ("fault: ICRC made wrong by 'bad-icrc tx opcode=ACK nth=2'",)
    ]
    # What was lost stands where it would have left.
    psns = [BTH.unpack(data, 42).psn for data, _ in client if data[42] in (6, 7, 8)]
    assert psns[:10] == [psns[0] + i & 0xFFFFFF for i in range(10)]
    # The server never saw the lost packet; what it saw is the repetition, byte for byte the same.
    assert [data for data, _ in client].count(dropped[0]) == 2


async def test_a_packet_dropped_on_its_way_out_is_in_no_capture_of_the_peer() -> None:
    async with ends(client=("drop tx opcode=WRITE once",)) as both:
        seen = tapped(both.server)
        sent = tapped(both.client)
        await both.connection.write(both.target, b"data")
        writes = [data for data, _, _ in seen.received_packets if data[0] == 0x0A]
        assert len(writes) == 1
        assert sent.opcodes().count(0x0A) == 2


async def test_what_is_dropped_on_its_way_in_is_in_the_capture_with_the_reason() -> None:
    async with ends(server=("drop rx opcode=WRITE once",)) as both:
        tap = tapped(both.server)
        await both.connection.write(both.target, b"data")
        comments = [comment for data, _, comment in tap.received_packets if data[0] == 0x0A]
        assert comments == ["fault: dropped by 'drop rx opcode=WRITE once'", None]
        assert both.rw.read(0, 4) == b"data"


async def test_delays_and_copies_change_nothing_in_the_end() -> None:
    rules = ("delay tx 3ms every=3", "dup tx every=2", "reorder tx every=5")
    async with ends(client=rules, server=rules) as both:
        for number in range(5):
            await both.connection.write(both.target, LONG, offset=number * len(LONG))
            assert await both.connection.fetch_add(both.target, 1, offset=60000) == number
        assert both.rw.read(0, 5 * len(LONG)) == 5 * LONG
        for nic in (both.client, both.server):
            assert all(nic.device.counters[f"fault_{name}"] for name in ("delay", "dup", "reorder"))


async def test_a_corrupted_packet_is_dropped_by_its_icrc_and_sent_again() -> None:
    async with ends(client=("corrupt tx opcode=WRITE byte=30 once",)) as both:
        log = Log(both.server)
        completion = await both.connection.write(both.target, b"data")
        assert completion.status is WCStatus.IBV_WC_SUCCESS
        assert [drop.reason for drop in log.of(Drop)] == ["icrc"]


async def test_ce_in_reaches_the_device_and_the_capture(tmp_path: Path) -> None:
    async with ends(server=("ce rx opcode=WRITE",), folder=tmp_path) as both:
        received = []
        take = both.server.device.receive
        both.server.device.receive = lambda datagrams, now: (  # type: ignore[method-assign]
            received.extend(datagrams),
            take(datagrams, now),
        )[1]
        await both.connection.write(both.target, b"data")
        assert [d.tos for d in received if d.payload[0] == 0x0A] == [3]
    with (tmp_path / "s").open("rb") as stream:
        marked = [p for p in read_capture(stream) if p.comments]
    assert [(p.data[15] & 3, p.comments) for p in marked] == [
        (3, ("fault: marked CE by 'ce rx opcode=WRITE'",))
    ]


async def test_ce_out_leaves_with_the_mark(tmp_path: Path) -> None:
    async with ends(client=("ce tx opcode=WRITE nth=2",), folder=tmp_path) as both:
        for _ in range(3):
            await both.connection.write(both.target, b"data")
    with (tmp_path / "c").open("rb") as stream:
        writes = [p for p in read_capture(stream) if p.data[42] == 0x0A]
    assert [p.data[15] & 3 for p in writes] == [0, 3, 0]


async def test_a_lost_connection_request_is_repeated() -> None:
    async with ends(client=("drop tx qp=1 once",)) as both:
        assert both.client.device.counters["fault_drop"] == 1
        await both.connection.write(both.target, b"data")
