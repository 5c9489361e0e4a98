"""Random lives of regions and windows against an oracle: who may read which bytes right now."""

import random

import pytest

from rocemu.protection import (
    Access,
    BindError,
    BindInfo,
    FastRegion,
    MemoryRegion,
    MemoryWindow,
    ProtectionDomain,
    ProtectionTable,
    RegionInUseError,
    SeededKeys,
)
from rocemu.verbs import AccessFlags, MWType

A = AccessFlags
RIGHTS = (A.IBV_ACCESS_REMOTE_READ, A.IBV_ACCESS_REMOTE_WRITE, A.IBV_ACCESS_REMOTE_ATOMIC)
LOCAL = A.IBV_ACCESS_LOCAL_WRITE | A.IBV_ACCESS_MW_BIND
QPS = {17: 1, 18: 1, 19: 2}  # QPN -> PD
STEPS, SIZE = 1000, 256

# The oracle: rkey -> (PD, QPN or None, first address, length, rights), for what is open.
Open = dict[int, tuple[int, int | None, int, int, AccessFlags]]


def expected(open_: Open, access: Access) -> bool:
    if access.key not in open_:
        return False
    pd, qpn, start, length, rights = open_[access.key]
    return (
        pd == access.pd
        and qpn in (None, access.qpn)
        and bool(access.needed & rights)
        and start <= access.va
        and access.va + access.length <= start + length
    )


class Walk:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.table = ProtectionTable(SeededKeys(b"%d" % seed), cache_size=8, remembered=32)
        self.pds = {handle: ProtectionDomain(handle) for handle in (1, 2)}
        self.regions: list[MemoryRegion] = []
        self.windows: list[MemoryWindow] = []
        self.under: dict[int, MemoryRegion] = {}  # open window key -> its region
        self.open: Open = {}
        self.keys = [0x100]  # every key that there ever was, and one that never was
        self.granted = 0

    def rights(self) -> AccessFlags:
        return AccessFlags(sum(right for right in RIGHTS if self.rng.random() < 0.6))

    def register(self) -> None:
        mr = MemoryRegion(self.pds[self.rng.choice((1, 1, 2))], SIZE, self.rights() | LOCAL)
        self.table.register(mr)
        self.regions.append(mr)
        self.open[mr.rkey] = (mr.pd.handle, None, mr.va, SIZE, mr.access)

    def alloc_fast(self) -> None:
        mr = FastRegion(self.pds[self.rng.choice((1, 1, 2))], SIZE)
        mr.map(bytearray(SIZE))
        self.table.register(mr)
        self.regions.append(mr)

    def alloc_window(self) -> None:
        mw = MemoryWindow(self.pds[self.rng.choice((1, 1, 2))], self.rng.choice(list(MWType)))
        self.table.alloc_mw(mw)
        self.windows.append(mw)

    def fast_register(self) -> None:
        fast = [mr for mr in self.regions if isinstance(mr, FastRegion)]
        if not fast:
            return
        mr, pd, rights = self.rng.choice(fast), self.rng.choice((1, 2)), self.rights() | LOCAL
        refused = mr.rkey in self.open or pd != mr.pd.handle
        key = mr.rkey & ~0xFF | self.rng.randrange(256)
        try:
            self.table.fast_register(mr, key, rights, pd)
        except BindError:
            assert refused
        else:
            assert not refused
            self.open[key] = (pd, None, mr.va, SIZE, rights)

    def bind(self) -> None:
        if not self.windows or not self.regions:
            return
        mw, mr = self.rng.choice(self.windows), self.rng.choice(self.regions)
        qpn, rights = self.rng.choice(list(QPS)), self.rights()
        start, length = mr.va + self.rng.randrange(-4, SIZE), self.rng.randrange(1, SIZE)
        second, old = mw.type is MWType.IBV_MW_TYPE_2, mw.rkey
        refused = (
            (second and old in self.open)
            or mr.rkey not in self.open
            or not QPS[qpn] == mw.pd.handle == mr.pd.handle
            or start < mr.va
            or start + length > mr.va + SIZE
        )
        key = old & ~0xFF | self.rng.randrange(256)
        try:
            self.table.bind(mw, key, BindInfo(mr, start, length, rights), QPS[qpn], qpn)
        except BindError:
            assert refused
        else:
            assert not refused
            mw.rkey = key
            self.shut(old)
            self.under[key] = mr
            self.open[key] = (mw.pd.handle, qpn if second else None, start, length, rights)

    def shut(self, key: int) -> None:
        self.open.pop(key, None)
        self.under.pop(key, None)

    def invalidate(self) -> None:
        key, qpn = self.rng.choice(self.keys), self.rng.choice(list(QPS))
        fast = {mr.rkey for mr in self.regions if isinstance(mr, FastRegion) and not self.used(mr)}
        second = {mw.rkey for mw in self.windows if mw.type is MWType.IBV_MW_TYPE_2}
        row = self.open.get(key)
        allowed = row is not None and row[0] == QPS[qpn]
        allowed = allowed and (key in fast or (key in second and row is not None and row[1] == qpn))
        assert self.table.invalidate(key, QPS[qpn], qpn) is allowed
        if allowed:
            self.shut(key)

    def used(self, mr: MemoryRegion) -> bool:
        return any(region is mr for region in self.under.values())

    def deregister(self) -> None:
        if not self.regions:
            return
        mr = self.rng.choice(self.regions)
        if self.used(mr):
            with pytest.raises(RegionInUseError):
                self.table.deregister(mr)
            return
        self.table.deregister(mr)
        self.regions.remove(mr)
        self.shut(mr.rkey)

    def dealloc_window(self) -> None:
        if self.windows:
            mw = self.windows.pop(self.rng.randrange(len(self.windows)))
            self.table.dealloc_mw(mw)
            self.shut(mw.rkey)

    def access(self) -> None:
        key = self.rng.choice([*self.keys[-40:], *self.open])
        start = self.open[key][2] if key in self.open else self.rng.choice((0, 1 << 41))
        where, length = start + self.rng.randrange(-8, SIZE), self.rng.randrange(1, SIZE)
        qpn = self.rng.choice(list(QPS))
        right = self.rng.choice(RIGHTS)
        access = Access(key, max(where, 0), length, right, QPS[qpn], qpn, True)
        verdict = self.table.authorize(access)
        assert verdict.ok is expected(self.open, access), verdict.describe()
        self.granted += verdict.ok

    def step(self) -> None:
        rare = [self.register, self.alloc_fast, self.alloc_window]
        rare += [self.deregister, self.dealloc_window]
        often = [self.fast_register, self.bind, self.bind, self.invalidate]
        self.rng.choice([*rare, *often * 2, *[self.access] * 10])()
        for key in self.open:
            if key not in self.keys:
                self.keys.append(key)


@pytest.mark.parametrize("seed", range(100))
def test_the_table_agrees_with_the_oracle(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    assert walk.granted > 5  # the walk went where something is open
    for mw in walk.windows:
        walk.table.dealloc_mw(mw)
    for mr in walk.regions:
        walk.table.deregister(mr)
    assert walk.table.entries() == []
    assert {pd.users for pd in walk.pds.values()} == {0}
