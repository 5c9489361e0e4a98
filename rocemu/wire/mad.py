"""Connection manager MADs as they go from QP 1 to QP 1 ([IBTA] chapter 12, Annex A11 for IP).

A CM MAD is 256 bytes: the 24-byte :class:`MadHeader` and a 232-byte message whose last field is
private data.  Every field is declared once, at its bits, on the dataclass that holds it; the codec
and the Scapy layers both read that table (:func:`rocemu.wire.layout`).
"""

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import ClassVar, Self

from rocemu.wire.bitfields import BitFields, at
from rocemu.wire.errors import WireError

__all__ = [
    "CM_CLASS_VERSION",
    "CM_MESSAGES",
    "GSI_QKEY",
    "GSI_QPN",
    "MAD_SIZE",
    "CmAttribute",
    "CmDrep",
    "CmDreq",
    "CmMessage",
    "CmMra",
    "CmRej",
    "CmRep",
    "CmReply",
    "CmReq",
    "CmRtu",
    "IpCmHeader",
    "MadHeader",
    "RejReason",
    "build_mad",
    "gid_of",
    "parse_mad",
    "service_id",
    "service_port",
]

#: Bytes of every CM MAD.
MAD_SIZE = 256
#: QP and Q_Key of the general services interface, where CM MADs come from and go to.
GSI_QPN = 1
GSI_QKEY = 0x80010000
#: The only class version of communication management that exists.
CM_CLASS_VERSION = 2

_BODY_SIZE = 232
_RDMA_PS_TCP = 0x0106


class CmAttribute(IntEnum):
    """What a CM MAD is: the header's attribute ID ([IBTA] 12.6)."""

    REQ = 0x10
    MRA = 0x11
    REJ = 0x12
    REP = 0x13
    RTU = 0x14
    DREQ = 0x15
    DREP = 0x16
    SIDR_REQ = 0x17
    SIDR_REP = 0x18
    LAP = 0x19
    APR = 0x1A


class RejReason(IntEnum):
    """Why a REJ rejects ([IBTA] 12.6.7.2)."""

    NO_QP = 1
    NO_EEC = 2
    NO_RESOURCES = 3
    TIMEOUT = 4
    UNSUPPORTED = 5
    INVALID_COMM_ID = 6
    INVALID_COMM_INSTANCE = 7
    INVALID_SERVICE_ID = 8
    """Nobody listens on that port."""
    INVALID_TRANSPORT_TYPE = 9
    STALE_CONNECTION = 10
    RDC_NOT_EXIST = 11
    INVALID_GID = 12
    INVALID_LID = 13
    INVALID_SL = 14
    INVALID_TRAFFIC_CLASS = 15
    INVALID_HOP_LIMIT = 16
    INVALID_PACKET_RATE = 17
    INVALID_ALT_GID = 18
    INVALID_ALT_LID = 19
    INVALID_ALT_SL = 20
    INVALID_ALT_TRAFFIC_CLASS = 21
    INVALID_ALT_HOP_LIMIT = 22
    INVALID_ALT_PACKET_RATE = 23
    PORT_CM_REDIRECT = 24
    PORT_REDIRECT = 25
    INVALID_MTU = 26
    INSUFFICIENT_RESPONDER_RESOURCES = 27
    CONSUMER_DEFINED = 28
    """The application said no; its private data tells why."""
    INVALID_RNR_RETRY = 29
    DUPLICATE_LOCAL_COMM_ID = 30
    INVALID_CLASS_VERSION = 31
    INVALID_FLOW_LABEL = 32
    INVALID_ALT_FLOW_LABEL = 33


@dataclass(slots=True, kw_only=True)
class MadHeader(BitFields):
    """The header of every MAD ([IBTA] 13.4.2), with the values that CM uses as defaults."""

    SIZE: ClassVar[int] = 24

    base_version: int = at(0, default=1)
    mgmt_class: int = at(1, default=7)
    class_version: int = at(2, default=CM_CLASS_VERSION)
    method: int = at(3, default=3)
    """Send, for answers too."""
    status: int = at(4, 16)
    class_specific: int = at(6, 16)
    transaction_id: int = at(8, 64)
    attribute_id: int = at(16, 16)
    """A :class:`CmAttribute`."""
    attribute_modifier: int = at(20, 32)
    """Linux carries data of its enhanced connection establishment here."""


_CM_HEADER = MadHeader()


@dataclass(slots=True, kw_only=True)
class CmMessage(BitFields):
    """What all CM messages have; offsets count from the end of the MAD header."""

    SIZE: ClassVar[int] = _BODY_SIZE
    ATTRIBUTE: ClassVar[CmAttribute]

    transaction_id: int = 0
    """From the MAD header: an answer repeats the one of the request."""
    local_comm_id: int = at(0, 32)
    """The *sender's* name for the connection."""


@dataclass(slots=True, kw_only=True)
class CmReq(CmMessage):
    """REQ, request for communication ([IBTA] 12.6.5)."""

    ATTRIBUTE: ClassVar[CmAttribute] = CmAttribute.REQ

    service_id: int = at(8, 64)
    local_ca_guid: int = at(16, 64)
    local_qkey: int = at(28, 32)
    local_qpn: int = at(32, 24)
    responder_resources: int = at(35)
    """READs and atomics that the sender of the REQ serves at once."""
    local_eecn: int = at(36, 24)
    initiator_depth: int = at(39)
    """READs and atomics that the sender of the REQ wants to have outstanding."""
    remote_eecn: int = at(40, 24)
    remote_cm_response_timeout: int = at(43, 5)
    """How long the receiver may take to answer: 4.096 us * 2^n."""
    transport_type: int = at(43, 2, bit=5)
    """0 RC, 1 UC, 2 RD, 3 extended (XRC)."""
    end_to_end_flow_control: bool = at(43, 1, bit=7, default=False)
    starting_psn: int = at(44, 24)
    """The PSN that the sender expects first: its RQ PSN."""
    local_cm_response_timeout: int = at(47, 5)
    retry_count: int = at(47, 3, bit=5)
    partition_key: int = at(48, 16, default=0xFFFF)
    path_mtu: int = at(50, 4)
    """An MTU code (1 is 256 bytes, 5 is 4096)."""
    rdc_exists: bool = at(50, 1, bit=4, default=False)
    rnr_retry_count: int = at(50, 3, bit=5)
    max_cm_retries: int = at(51, 4)
    srq: bool = at(51, 1, bit=4, default=False)
    extended_transport_type: int = at(51, 3, bit=5)
    primary_local_lid: int = at(52, 16, default=0xFFFF)
    """RoCE has no LIDs: 0xFFFF, the permissive one."""
    primary_remote_lid: int = at(54, 16, default=0xFFFF)
    primary_local_gid: bytes = at(56, 128, default=bytes(16))
    primary_remote_gid: bytes = at(72, 128, default=bytes(16))
    primary_flow_label: int = at(88, 20)
    primary_packet_rate: int = at(91, 6, bit=2)
    primary_traffic_class: int = at(92)
    primary_hop_limit: int = at(93, default=64)
    primary_sl: int = at(94, 4)
    primary_subnet_local: bool = at(94, 1, bit=4, default=False)
    primary_local_ack_timeout: int = at(95, 5)
    """For the receiver's QP: 4.096 us * 2^n."""
    alternate_local_lid: int = at(96, 16)
    alternate_remote_lid: int = at(98, 16)
    alternate_local_gid: bytes = at(100, 128, default=bytes(16))
    alternate_remote_gid: bytes = at(116, 128, default=bytes(16))
    alternate_flow_label: int = at(132, 20)
    alternate_packet_rate: int = at(135, 6, bit=2)
    alternate_traffic_class: int = at(136)
    alternate_hop_limit: int = at(137)
    alternate_sl: int = at(138, 4)
    alternate_subnet_local: bool = at(138, 1, bit=4, default=False)
    alternate_local_ack_timeout: int = at(139, 5)
    private_data: bytes = at(140, 92 * 8, default=b"")
    """For an IP service an :class:`IpCmHeader` and 56 bytes of the application's."""


@dataclass(slots=True, kw_only=True)
class CmReply(CmMessage):
    """What all but a REQ have: both communication IDs."""

    remote_comm_id: int = at(4, 32)
    """The receiver's name for the connection."""


@dataclass(slots=True, kw_only=True)
class CmMra(CmReply):
    """MRA, message received, the answer takes longer ([IBTA] 12.6.6)."""

    ATTRIBUTE: ClassVar[CmAttribute] = CmAttribute.MRA

    message: int = at(8, 2)
    """What was received: 0 REQ, 1 REP, 2 LAP."""
    service_timeout: int = at(9, 5)
    """How long the answer may still take: 4.096 us * 2^n."""
    private_data: bytes = at(10, 222 * 8, default=b"")


@dataclass(slots=True, kw_only=True)
class CmRej(CmReply):
    """REJ, reject ([IBTA] 12.6.7)."""

    ATTRIBUTE: ClassVar[CmAttribute] = CmAttribute.REJ

    message: int = at(8, 2)
    """What is rejected: 0 REQ, 1 REP, 2 no message (a timeout)."""
    info_length: int = at(9, 7)
    """Bytes of ``info`` that count."""
    reason: int = at(10, 16)
    """A :class:`RejReason`."""
    info: bytes = at(12, 72 * 8, default=b"")
    """Additional reject information (ARI)."""
    private_data: bytes = at(84, 148 * 8, default=b"")


@dataclass(slots=True, kw_only=True)
class CmRep(CmReply):
    """REP, reply to a REQ ([IBTA] 12.6.8)."""

    ATTRIBUTE: ClassVar[CmAttribute] = CmAttribute.REP

    local_qkey: int = at(8, 32)
    local_qpn: int = at(12, 24)
    local_eecn: int = at(16, 24)
    starting_psn: int = at(20, 24)
    """The PSN that the sender expects first: its RQ PSN."""
    responder_resources: int = at(24)
    initiator_depth: int = at(25)
    target_ack_delay: int = at(26, 5)
    failover_accepted: int = at(26, 2, bit=5)
    end_to_end_flow_control: bool = at(26, 1, bit=7, default=False)
    rnr_retry_count: int = at(27, 3)
    srq: bool = at(27, 1, bit=3, default=False)
    local_ca_guid: int = at(28, 64)
    private_data: bytes = at(36, 196 * 8, default=b"")


@dataclass(slots=True, kw_only=True)
class CmRtu(CmReply):
    """RTU, ready to use ([IBTA] 12.6.9)."""

    ATTRIBUTE: ClassVar[CmAttribute] = CmAttribute.RTU

    private_data: bytes = at(8, 224 * 8, default=b"")


@dataclass(slots=True, kw_only=True)
class CmDreq(CmReply):
    """DREQ, request to disconnect ([IBTA] 12.6.10)."""

    ATTRIBUTE: ClassVar[CmAttribute] = CmAttribute.DREQ

    remote_qpn: int = at(8, 24)
    """The *receiver's* QP."""
    private_data: bytes = at(12, 220 * 8, default=b"")


@dataclass(slots=True, kw_only=True)
class CmDrep(CmReply):
    """DREP, answer to a DREQ ([IBTA] 12.6.11)."""

    ATTRIBUTE: ClassVar[CmAttribute] = CmAttribute.DREP

    private_data: bytes = at(8, 224 * 8, default=b"")


#: The messages that :func:`parse_mad` reads, by attribute ID.
CM_MESSAGES: dict[int, type[CmMessage]] = {
    cls.ATTRIBUTE: cls for cls in (CmReq, CmMra, CmRej, CmRep, CmRtu, CmDreq, CmDrep)
}


@dataclass(slots=True, kw_only=True)
class IpCmHeader(BitFields):
    """The first 36 bytes of a REQ's private data when the service is an IP one ([IBTA] A11)."""

    SIZE: ClassVar[int] = 36

    cma_version: int = at(0)
    """Major version in bits 7:4, minor in 3:0; only 0 exists."""
    ip_version: int = at(1, 4, default=4)
    source_port: int = at(2, 16)
    source: bytes = at(4, 128, default=bytes(16))
    """An IPv4 address is in the last four bytes of the sixteen, zeros before it."""
    destination: bytes = at(20, 128, default=bytes(16))

    @classmethod
    def between(cls, source: str, source_port: int, destination: str) -> Self:
        """The header of a connection; both addresses of one IP version (ValueError if not)."""
        first, second = ip_address(source), ip_address(destination)
        if first.version != second.version:
            raise ValueError(f"{source} and {destination} are not of one IP version")
        return cls(
            ip_version=first.version,
            source_port=source_port,
            source=first.packed.rjust(16, b"\0"),
            destination=second.packed.rjust(16, b"\0"),
        )

    @property
    def source_address(self) -> str:
        """``192.0.2.1`` or ``2001:db8::1``, as ``ip_version`` says."""
        return self._text(self.source)

    @property
    def destination_address(self) -> str:
        return self._text(self.destination)

    def _text(self, octets: bytes) -> str:
        return str(IPv6Address(octets) if self.ip_version == 6 else IPv4Address(octets[12:]))


def parse_mad(payload: bytes | memoryview) -> CmMessage:
    """Read a CM MAD.

    Raises WireError (reason ``mad``), and nothing else, for bytes that are none: not 256 of them,
    another base version, class, class version or method, or an attribute not in
    :data:`CM_MESSAGES`.
    """
    if len(payload) != MAD_SIZE:
        raise WireError("mad", f"{len(payload)} bytes, a MAD has {MAD_SIZE}")
    header = MadHeader.unpack(payload)
    for name in ("base_version", "mgmt_class", "class_version", "method"):
        value, expected = getattr(header, name), getattr(_CM_HEADER, name)
        if value != expected:
            raise WireError("mad", f"MAD {name} {value}, CM has {expected}")
    cls = CM_MESSAGES.get(header.attribute_id)
    if cls is None:
        raise WireError("mad", f"CM attribute {header.attribute_id:#06x} is not supported")
    message = cls.unpack(payload, MadHeader.SIZE)
    message.transaction_id = header.transaction_id
    return message


def build_mad(message: CmMessage) -> bytes:
    """The 256 bytes of a message; raises WireError for a value that its field does not hold."""
    header = MadHeader(transaction_id=message.transaction_id, attribute_id=type(message).ATTRIBUTE)
    return header.pack() + message.pack()


def service_id(port: int) -> int:
    """The service ID of a port in the port space RDMA_PS_TCP ([IBTA] A11.2)."""
    return _RDMA_PS_TCP << 16 | port


def service_port(service: int) -> int | None:
    """The port of a service ID; None when it is of another port space."""
    return service & 0xFFFF if service >> 16 == _RDMA_PS_TCP else None


def gid_of(address: str) -> bytes:
    """The 16 bytes of the RoCEv2 GID of an IP address; IPv4 is mapped (``::ffff:192.0.2.1``)."""
    packed = ip_address(address).packed
    return packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed
