"""The key cache against a naive model, and its bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.protection import KeyCache, KeyKind, MPTEntry
from rocemu.verbs import AccessFlags

ENTRIES = [
    MPTEntry(
        key=index << 8,
        kind=KeyKind.RKEY,
        pd_handle=1,
        va=0,
        length=0,
        access=AccessFlags(0),
        mr=None,
        name=str(index),
    )
    for index in range(8)
]

steps = st.lists(st.tuples(st.sampled_from(["look up", "invalidate"]), st.integers(0, 7)))


@given(size=st.integers(1, 4), steps=steps)
def test_behaves_as_a_list_with_the_latest_last(size: int, steps: list[tuple[str, int]]) -> None:
    cache = KeyCache(size)
    model: list[int] = []
    hits = misses = evictions = 0
    for step, index in steps:
        if step == "invalidate":
            cache.invalidate(index)
            model = [other for other in model if other != index]
        elif index in model:
            assert cache.get(index) is ENTRIES[index]
            model.remove(index)
            model.append(index)
            hits += 1
        else:
            assert cache.get(index) is None
            cache.put(index, ENTRIES[index])
            model.append(index)
            misses += 1
            if len(model) > size:
                del model[0]
                evictions += 1
        assert {other for other in range(8) if other in cache} == set(model)
        assert len(cache) == len(model) <= size
    assert (cache.hits, cache.misses, cache.evictions) == (hits, misses, evictions)


@pytest.mark.parametrize("size", [0, -1])
def test_a_cache_holds_at_least_one(size: int) -> None:
    with pytest.raises(ValueError, match=f"size {size}: at least 1"):
        KeyCache(size)
