"""Syndromes, credit and timer codes ([IBTA] 9.7.5.2)."""

import pytest

from rocemu.wire import (
    CREDITS,
    RNR_TIMERS_MS,
    AethKind,
    NakCode,
    ack_syndrome,
    aeth_kind,
    describe_syndrome,
    nak_syndrome,
    rnr_syndrome,
)


@pytest.mark.parametrize(
    ("code", "syndrome"),
    [
        (NakCode.PSN_SEQUENCE_ERROR, 0x60),
        (NakCode.INVALID_REQUEST, 0x61),
        (NakCode.REMOTE_ACCESS_ERROR, 0x62),
        (NakCode.REMOTE_OPERATIONAL_ERROR, 0x63),
        (NakCode.INVALID_RD_REQUEST, 0x64),
    ],
)
def test_nak_syndromes(code: NakCode, syndrome: int):
    assert nak_syndrome(code) == syndrome


def test_ack_and_rnr_syndromes():
    assert [ack_syndrome(), ack_syndrome(0), ack_syndrome(12)] == [0x1F, 0x00, 0x0C]
    assert [rnr_syndrome(0), rnr_syndrome(14), rnr_syndrome(31)] == [0x20, 0x2E, 0x3F]


def test_every_byte_is_ack_rnr_nak_or_reserved():
    kinds = {value: aeth_kind(value) for value in range(256)}
    assert {value for value, kind in kinds.items() if kind is AethKind.ACK} == {*range(0x20)}
    assert {value for value, kind in kinds.items() if kind is AethKind.RNR_NAK} == {
        *range(0x20, 0x40)
    }
    assert {value for value, kind in kinds.items() if kind is AethKind.NAK} == {*range(0x60, 0x80)}
    assert {value for value, kind in kinds.items() if kind is None} == {
        *range(0x40, 0x60),
        *range(0x80, 0x100),
    }


def test_credits_double_every_second_code():
    assert CREDITS[:4] == (0, 1, 2, 3)
    assert len(CREDITS) == 31
    for code in range(4, 31):
        assert CREDITS[code] == 2 * CREDITS[code - 2], code


def test_rnr_timers_double_every_second_code_and_zero_is_the_longest():
    assert RNR_TIMERS_MS[:6] == (655.36, 0.01, 0.02, 0.03, 0.04, 0.06)
    assert len(RNR_TIMERS_MS) == 32
    assert max(RNR_TIMERS_MS) == RNR_TIMERS_MS[0] == 2 * RNR_TIMERS_MS[30]
    for code in range(4, 32):
        assert RNR_TIMERS_MS[code] == pytest.approx(2 * RNR_TIMERS_MS[code - 2]), code


@pytest.mark.parametrize(
    ("syndrome", "text"),
    [
        (0x1F, "ACK"),
        (0x00, "ACK credits 0"),
        (0x0C, "ACK credits 64"),
        (0x20, "RNR NAK 655.36 ms"),
        (0x2E, "RNR NAK 1.28 ms"),
        (0x60, "NAK PSN Sequence Error"),
        (0x61, "NAK Invalid Request"),
        (0x62, "NAK Remote Access Error"),
        (0x63, "NAK Remote Operational Error"),
        (0x65, "NAK reserved code 5"),
        (0x40, "reserved syndrome 0x40"),
        (0xE2, "reserved syndrome 0xe2"),
    ],
)
def test_syndromes_in_words(syndrome: int, text: str):
    assert describe_syndrome(syndrome) == text
