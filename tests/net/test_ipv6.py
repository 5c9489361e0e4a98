"""IPv6 without root: loopback has one address, so a NIC there connects to itself."""

import asyncio

import pytest

from rocemu.net import CompletionError, NetError, Nic, connect, listen
from rocemu.net.sockets import largest_mtu, source_address
from rocemu.verbs import MTU
from rocemu.wire import IcrcMatch, verify
from tests.net.pair import ALL, READ_ONLY, tapped


async def test_a_nic_connects_to_itself() -> None:
    async with await Nic.open("::1") as nic:
        tap = tapped(nic)
        pd = nic.device.alloc_pd()
        exposed = [nic.device.reg_mr(pd, 9000, ALL, name="rw")]
        exposed += [nic.device.reg_mr(pd, 64, READ_ONLY, name=f"r{i}") for i in range(12)]
        listener = listen(nic, pd=pd, expose=exposed)
        async with await connect(nic, "::1") as connection:
            accepted = await anext(listener)
            assert len(connection.regions) == 13
            await connection.write(connection.regions["rw"], bytes(range(256)) * 33)
            content = await connection.read(connection.regions["rw"], 8448)
            assert content == bytes(range(256)) * 33
            receiving = asyncio.create_task(accepted.receive())
            await asyncio.sleep(0)
            await connection.send(b"over IPv6", imm=6)
            assert (await receiving)[0] == b"over IPv6"
            with pytest.raises(CompletionError, match="IBV_WC_REM_ACCESS_ERR"):
                await connection.write(connection.regions["r0"], b"no")
        counters = nic.device.counters
        assert counters["icrc_exact"] == counters["received"] > 0, "nothing is hidden from IPv6"
        for sealed, flow in tap.sent_packets:
            assert verify(sealed, flow)[0] is IcrcMatch.EXACT


async def test_families_do_not_mix() -> None:
    async with await Nic.open("::1") as nic:
        with pytest.raises(NetError, match=r"'127\.0\.0\.1' has no IPv6 address"):
            await connect(nic, "127.0.0.1")


async def test_nobody_at_all() -> None:
    """::1 is ours, so nobody else can be there: the port is open, and no service on it."""
    async with await Nic.open("::1") as nic:
        with pytest.raises(NetError, match="nobody listens on CM port 18515 there"):
            await connect(nic, "::1")


def test_the_path() -> None:
    assert largest_mtu("::1", "::1") is MTU.IBV_MTU_4096
    assert source_address("::1") == "::1"
