"""Makes the guest's link lose, double and reorder packets, in both directions, by tc's netem."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.interop.sides import in_guest

LOSS = "loss 1%"
#: A reordered packet overtakes those that wait out the delay.
DISORDER = "delay 300us reorder 5% duplicate 2%"


@asynccontextmanager
async def bad_link(netem: str) -> AsyncIterator[None]:
    """``netem``'s faults on what the guest sends and, by a detour through an ifb, what it gets."""
    steps = (
        f"tc qdisc add dev eth0 root netem {netem}",
        "ip link add ifb9 type ifb && ip link set ifb9 mtu 9000 up",
        f"tc qdisc add dev ifb9 root netem {netem}",
        "tc qdisc add dev eth0 handle ffff: ingress",
        "tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb9",
    )
    try:
        await in_guest("sh", "-c", " && ".join(steps))
        yield
    finally:
        undo = "tc qdisc del dev eth0 root; tc qdisc del dev eth0 ingress; ip link del ifb9"
        await in_guest("sh", "-c", undo)
