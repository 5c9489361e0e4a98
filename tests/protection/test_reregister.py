"""Reregistration: each flag, and that a refused one leaves the region as it was."""

import pytest

from rocemu.protection import (
    Access,
    BindInfo,
    Cause,
    MemoryRegion,
    MemoryWindow,
    ProtectionDomain,
    ProtectionTable,
    RegionInUseError,
    RegistrationError,
    SeededKeys,
    Verdict,
)
from rocemu.verbs import AccessFlags, MWType, ReregFlags

READ = AccessFlags.IBV_ACCESS_REMOTE_READ
WRITE = AccessFlags.IBV_ACCESS_REMOTE_WRITE | AccessFlags.IBV_ACCESS_LOCAL_WRITE
BIND = AccessFlags.IBV_ACCESS_MW_BIND
TRANSLATION = ReregFlags.IBV_REREG_MR_CHANGE_TRANSLATION
PD = ReregFlags.IBV_REREG_MR_CHANGE_PD
ACCESS = ReregFlags.IBV_REREG_MR_CHANGE_ACCESS


class World:
    def __init__(self, access: AccessFlags = READ) -> None:
        self.table = ProtectionTable(SeededKeys(b"rereg"))
        self.pd, self.other = ProtectionDomain(1), ProtectionDomain(2)
        self.mr = MemoryRegion(self.pd, bytearray(b"old memory"), access, va=0x1000, name="r")
        self.table.register(self.mr)
        self.old = self.mr.rkey

    def read(self, key: int, va: int = 0x1000, length: int = 10, pd: int = 1) -> Verdict:
        return self.table.authorize(Access(key, va, length, READ, pd, 17, True))


@pytest.fixture
def world() -> World:
    return World()


def test_translation(world: World) -> None:
    new = bytearray(b"new and longer")
    world.table.reregister(world.mr, TRANSLATION, buffer=new, va=0x9000)
    assert world.read(world.mr.rkey, 0x9000, 14).ok
    assert world.read(world.mr.rkey, 0x1000).causes == (Cause.BOUNDS,)
    assert world.mr.read(0, 3) == b"new"
    assert (world.mr.pd, world.mr.access) == (world.pd, READ)


def test_domain(world: World) -> None:
    world.table.reregister(world.mr, PD, pd=world.other)
    assert world.read(world.mr.rkey, pd=2).ok
    assert world.read(world.mr.rkey, pd=1).causes == (Cause.PD,)
    assert (world.pd.users, world.other.users) == (0, 1)
    assert world.mr.read(0, 3) == b"old"


def test_access(world: World) -> None:
    world.table.reregister(world.mr, ACCESS, access=WRITE)
    assert world.read(world.mr.rkey).causes == (Cause.PERMISSION,)
    assert (world.mr.va, world.mr.length) == (0x1000, 10)


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        (TRANSLATION, {"buffer": bytearray(8)}),
        (PD, {"pd": ProtectionDomain(3)}),
        (ACCESS, {"access": READ}),
    ],
)
def test_the_old_keys_are_withdrawn(
    world: World, flags: ReregFlags, values: dict[str, object]
) -> None:
    old_lkey = world.mr.lkey
    world.table.reregister(world.mr, flags, **values)  # type: ignore[arg-type]
    assert Cause.STATE in world.read(world.old).causes
    assert world.table.lookup(old_lkey).mr is None  # type: ignore[union-attr]
    assert len(world.table.entries()) == 2


def test_flags_alone_say_what_changes(world: World) -> None:
    world.table.reregister(world.mr, ACCESS, access=READ, pd=world.other, buffer=bytearray(1))
    assert world.read(world.mr.rkey).ok


def _ended(world: World) -> ProtectionDomain:
    world.other.dealloc()
    return world.other


def test_a_refused_change_changes_nothing(world: World) -> None:
    remote_write = AccessFlags.IBV_ACCESS_REMOTE_WRITE
    for error, flags, values in (
        (ValueError, ReregFlags(0), {}),
        (ValueError, ACCESS, {}),
        (ValueError, PD, {}),
        (ValueError, TRANSLATION, {"va": 0}),
        (RegistrationError, ACCESS, {"access": remote_write}),
        (RegistrationError, PD, {"pd": _ended(world)}),
        (RegistrationError, TRANSLATION, {"buffer": bytearray(8), "va": (1 << 64) - 7}),
        (RegistrationError, TRANSLATION | ACCESS, {"buffer": bytearray(8), "access": remote_write}),
    ):
        with pytest.raises(error):
            world.table.reregister(world.mr, flags, **values)  # type: ignore[arg-type]
        assert world.mr.rkey == world.old
        assert world.read(world.old).ok
        assert (world.pd.users, world.mr.read(0, 3)) == (1, b"old")


def test_not_while_a_window_is_bound() -> None:
    world = World(READ | BIND)
    mw = MemoryWindow(world.pd, MWType.IBV_MW_TYPE_2)
    world.table.alloc_mw(mw)
    world.table.bind(mw, mw.rkey, BindInfo(world.mr, 0x1000, 4, READ), 1, 17)
    with pytest.raises(RegionInUseError):
        world.table.reregister(world.mr, ACCESS, access=READ)
    assert world.read(world.old).ok
    assert world.read(mw.rkey, length=4).ok
    assert world.table.invalidate(mw.rkey, 1, 17)
    world.table.reregister(world.mr, ACCESS, access=READ)
