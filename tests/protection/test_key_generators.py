"""Keys: their form, their source, and that a seed repeats them."""

import hashlib
import secrets
import struct
from collections.abc import Iterator

import pytest

from rocemu.protection import KeyGenerator, OsKeys, SeededKeys, key_index, key_variant


def never(_: int) -> bool:
    return False


def chacha20_words(key: bytes) -> Iterator[bytes]:
    """The ChaCha20 keystream with a zero nonce, four bytes at a time (RFC 8439, 2.3)."""

    def rotate(word: int, by: int) -> int:
        return (word << by | word >> 32 - by) & 0xFFFFFFFF

    counter = 0
    while True:
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key)]
        start += [counter, 0, 0, 0]
        x = start.copy()
        columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
        diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
        for a, b, c, d in (columns + diagonals) * 10:
            for left, right in ((16, 12), (8, 7)):
                x[a] = (x[a] + x[b]) & 0xFFFFFFFF
                x[d] = rotate(x[d] ^ x[a], left)
                x[c] = (x[c] + x[d]) & 0xFFFFFFFF
                x[b] = rotate(x[b] ^ x[c], right)
        for word, initial in zip(x, start, strict=True):
            yield struct.pack("<I", (word + initial) & 0xFFFFFFFF)
        counter += 1


def test_seeded_keys_are_the_chacha20_keystream_under_the_hash_of_the_seed() -> None:
    keys = SeededKeys(b"rocemu")
    words = chacha20_words(hashlib.sha256(b"rocemu").digest())
    for _ in range(40):
        word = int.from_bytes(next(words), "big")
        assert word >> 8, "this seed should not draw index 0 in its first words"
        assert keys.next_key(never) == word


def test_the_same_seed_repeats_and_another_does_not() -> None:
    first, again, other = (SeededKeys(seed) for seed in (b"a", b"a", b"b"))
    drawn = [first.next_key(never) for _ in range(20)]
    assert drawn == [again.next_key(never) for _ in range(20)]
    assert drawn != [other.next_key(never) for _ in range(20)]


def test_os_keys_come_from_the_csprng_and_skip_what_is_not_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = iter([0x00000042, 0x00000512, 0xABCDEF99])
    asked: list[int] = []

    def randbits(bits: int) -> int:
        asked.append(bits)
        return next(words)

    monkeypatch.setattr(secrets, "randbits", randbits)
    assert OsKeys().next_key({5}.__contains__) == 0xABCDEF99
    assert asked == [32, 32, 32]


def test_seeded_keys_skip_what_is_in_use() -> None:
    first, second = (SeededKeys(b"x") for _ in range(2))
    taken = key_index(first.next_key(never))
    expected = first.next_key(never)
    assert second.next_key({taken}.__contains__) == expected


@pytest.mark.parametrize("keys", [OsKeys(), SeededKeys(b"s")], ids=["os", "seeded"])
def test_keys_are_32_bits_with_an_index_of_their_own(keys: KeyGenerator) -> None:
    indices: set[int] = set()
    for _ in range(2000):
        key = keys.next_key(indices.__contains__)
        assert 0 < key < 1 << 32
        assert key_index(key) > 0
        assert key_index(key) not in indices
        indices.add(key_index(key))


def test_a_key_is_index_and_variant() -> None:
    assert key_index(0xABCDEF12) == 0xABCDEF
    assert key_variant(0xABCDEF12) == 0x12
