"""Rules that a packet keeps or breaks by itself, checked on whole columns."""

from collections.abc import Callable

import numpy as np

from rocemu.audit.columns import Columns
from rocemu.audit.findings import Findings
from rocemu.audit.networks import Flags, Ints, windows
from rocemu.audit.tables import (
    AETH_WORD,
    ATOMIC_WORD,
    CLASS,
    DEFINED,
    DETH_WORD,
    RETH_WORD,
    RULE,
    RULES,
    PacketClass,
)
from rocemu.wire import (
    BTH,
    CNP_OPCODE,
    GSI_QKEY,
    GSI_QPN,
    ICRC_SIZE,
    NakCode,
    Op,
    PayloadRule,
    Transport,
    describe_syndrome,
    opcode_name,
)

__all__ = ["check_packets"]

_SMALLEST, _LARGEST = 256, 4096  # path MTUs
_MOST_DMA = 1 << 31
_WRITES_ALONE = (Op.RDMA_WRITE_ONLY, Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE)


def check_packets(columns: Columns, findings: Findings) -> None:
    """Report everything that is wrong with single packets, ICRCs aside."""
    _Checks(columns, findings).run()


class _Checks:
    def __init__(self, columns: Columns, findings: Findings) -> None:
        self._c = columns
        self._findings = findings

    def run(self) -> None:
        c = self._c
        size = c.at.end - c.at.bth
        whole = self._lengths(size)
        version = c.words[:, 0] >> 16 & 15
        self._report("tver", whole & (version > 0), lambda row: f"transport version {version[row]}")
        self._report("opcode-reserved", whole & ~DEFINED[c.opcode] & (version == 0), self._opcode)
        known = whole & DEFINED[c.opcode] & (version == 0)
        self._report(
            "datagram-short",
            known & (c.payload < 0),
            lambda row: f"{self._name(row)} of {size[row]} bytes: {-c.payload[row]} too few",
        )
        known &= c.readable
        self._pads(known, size)
        self._bth(known)
        self._payloads(known)
        self._addresses(known)
        self._syndromes(known)
        self._cnps(known & (c.opcode == CNP_OPCODE))

    def _report(self, code: str, wrong: Flags, text: Callable[[int], str]) -> None:
        for row in np.flatnonzero(wrong).tolist():
            self._findings.add(code, (int(self._c.number[row]),), text(row))

    def _name(self, row: int) -> str:
        return opcode_name(int(self._c.opcode[row]))

    def _opcode(self, row: int) -> str:
        opcode = int(self._c.opcode[row])
        if opcode == Transport.CNP:
            return "opcode 0x80 is InfiniBand's CNP, that of RoCEv2 is 0x81"
        return f"opcode {opcode:#04x} is not defined"

    def _lengths(self, size: Ints) -> Flags:
        """Report lengths that cannot be; the rows whose BTH is worth a look."""
        c = self._c
        contradiction = ~c.at.fragment & ((c.at.spare != 0) | (size < 0))
        self._report("fragmented", c.at.fragment, lambda row: "a fragment of a RoCE packet")
        self._report(
            "datagram-length",
            contradiction,
            lambda row: (
                f"UDP says {size[row] + 8} bytes, the IP header has room for "
                f"{size[row] + 8 + c.at.spare[row]}"
            ),
        )
        usable = ~c.at.fragment & (c.at.spare >= 0) & (size >= 0)
        runt = usable & (size < BTH.SIZE + ICRC_SIZE)
        self._report(
            "datagram-short",
            runt,
            lambda row: f"{size[row]} bytes to the RoCE port, a BTH with its ICRC is 16",
        )
        return usable & ~runt & (c.at.bth + BTH.SIZE <= c.at.captured)

    def _pads(self, known: Flags, size: Ints) -> None:
        c = self._c
        self._report(
            "pad",
            known & (size & 3 > 0),
            lambda row: f"{self._name(row)} of {size[row]} bytes with PadCnt {c.pad[row]}",
        )
        rows = np.flatnonzero(known & (c.pad > 0) & (c.at.end <= c.at.captured))
        last = windows(c.data, 3)[c.at.end[rows] - ICRC_SIZE - 3] != 0
        kept = np.arange(3) >= 3 - c.pad[rows, np.newaxis]
        for row in rows[(last & kept).any(axis=1)].tolist():
            pad = c.packet(row)[-int(c.pad[row]) :]
            self._findings.add("pad-not-zero", (int(c.number[row]),), f"pad bytes {pad.hex(' ')}")

    def _bth(self, known: Flags) -> None:
        c = self._c
        pkey = c.words[:, 0] & 0xFFFF
        self._report("pkey", known & (pkey & 0x7FFF == 0), lambda row: f"P_Key {pkey[row]:#06x}")
        six, seven = c.words[:, 1] >> 24 & 0x3F, c.words[:, 2] >> 24 & 0x7F
        self._report(
            "reserved-bits",
            known & (six | seven > 0),
            lambda row: f"{self._name(row)} with resv6 {six[row]:#04x}, resv7 {seven[row]:#04x}",
        )
        self._report(
            "qpn-reserved", known & (c.dest_qp == 0), lambda row: f"{self._name(row)} to QP 0"
        )
        qkey = np.where(DETH_WORD[c.opcode] > 0, c.field(DETH_WORD), GSI_QKEY)
        self._report(
            "gsi-qkey",
            known & (c.dest_qp == GSI_QPN) & (qkey != GSI_QKEY),
            lambda row: f"{self._name(row)} to QP 1 with Q_Key {qkey[row]:#010x}",
        )

    def _payloads(self, known: Flags) -> None:
        c = self._c
        wrong = known & _lengths_wrong(c)
        self._report(
            "payload-length",
            wrong,
            lambda row: (
                f"{self._name(row)} with {c.payload[row]} bytes of payload, allowed is "
                f"{RULES[RULE[c.opcode[row]]].value}"
            ),
        )
        length = c.dma_length
        reth = known & (RETH_WORD[c.opcode] > 0)
        self._report(
            "dma-length",
            reth & (length > _MOST_DMA),
            lambda row: f"{self._name(row)} with DMA length {length[row]}",
        )
        operation = c.opcode & 0x1F
        alone = np.isin(operation, _WRITES_ALONE) & (c.payload != length)
        first = (operation == Op.RDMA_WRITE_FIRST) & (c.payload >= length)
        atomic = (operation == Op.ATOMIC_WRITE) & (length != 8)
        self._report(
            "write-length",
            reth & ~wrong & (alone | first | atomic),
            lambda row: (
                f"{self._name(row)} carries {c.payload[row]} bytes, its RETH says {length[row]}"
            ),
        )

    def _addresses(self, known: Flags) -> None:
        c = self._c
        low = np.where(ATOMIC_WORD[c.opcode] > 0, c.field(ATOMIC_WORD, 1), 0)
        self._report(
            "atomic-alignment",
            known & (low & 7 > 0),
            lambda row: f"{self._name(row)} at {c.va[row]:#x}",
        )

    def _syndromes(self, known: Flags) -> None:
        c = self._c
        answers = known & (AETH_WORD[c.opcode] > 0)
        syndrome = c.aeth >> 24
        kind, value = syndrome >> 5, syndrome & 31
        rd = (c.opcode & 0xE0) == Transport.RD
        most = np.where(rd, NakCode.INVALID_RD_REQUEST, NakCode.REMOTE_OPERATIONAL_ERROR)
        reserved = (kind == 2) | (kind > 3) | (kind == 3) & (value > most)

        def text(row: int) -> str:
            said = describe_syndrome(int(syndrome[row]))
            return f"{self._name(row)} with syndrome {syndrome[row]:#04x} ({said})"

        self._report("aeth-reserved", answers & reserved, text)
        data = (c.opcode & 0x1F) != Op.ACKNOWLEDGE
        self._report("answer-syndrome", answers & data & ~reserved & (kind > 0), text)

    def _cnps(self, cnps: Flags) -> None:
        c = self._c
        marks = c.words[:, 1] >> 30  # FECN, BECN
        filled: Flags = np.asarray(c.words[:, 3:7].any(axis=1))
        wrong = cnps & ((marks != 1) | (c.words[:, 2] != 0) | filled)
        self._report(
            "cnp-format",
            wrong,
            lambda row: (
                f"CNP with FECN {marks[row] >> 1}, BECN {marks[row] & 1}, AckReq and PSN "
                f"{c.words[row, 2]:#x}, reserved bytes {'not ' if filled[row] else ''}all 0"
            ),
        )


def _lengths_wrong(c: Columns) -> Flags:
    """Payloads that no path MTU makes right."""
    payload, within = c.payload, c.payload <= _LARGEST
    allowed = {
        PayloadRule.NONE: payload == 0,
        PayloadRule.FULL: within & (payload >= _SMALLEST) & (payload & (payload - 1) == 0),
        PayloadRule.SOME: within & (payload > 0),
        PayloadRule.ANY: within | (CLASS[c.opcode] == PacketClass.DATAGRAM),
        PayloadRule.EIGHT: payload == 8,
    }
    right: Flags = np.stack([allowed[rule] for rule in RULES])[RULE[c.opcode], np.arange(len(c))]
    return ~right
