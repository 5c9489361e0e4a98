"""Fields of the connection manager's MADs: Wireshark's names for what :mod:`rocemu.wire.mad` lays
out; positions are read from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum

from rocemu.audit.fields import Field, Kind
from rocemu.wire import (
    BitFields,
    CmAttribute,
    CmDrep,
    CmDreq,
    CmMra,
    CmRej,
    CmRep,
    CmReq,
    CmRtu,
    IpCmHeader,
    MadHeader,
    RejReason,
    layout,
)

__all__ = ["CM_FIELDS", "CM_LAYERS", "CM_TITLES"]

#: Attribute ID -> layer of the message.
CM_LAYERS: dict[int, str] = {
    CmAttribute.REQ: "cm.req",
    CmAttribute.MRA: "cm.mra",
    CmAttribute.REJ: "cm.rej",
    CmAttribute.REP: "cm.rep",
    CmAttribute.RTU: "cm.rtu",
    CmAttribute.DREQ: "cm.dreq",
    CmAttribute.DREP: "cm.drsp",
}

CM_TITLES = {
    "mad": "MAD Header - Common Management Datagram",
    "cm.req": "CM ConnectRequest",
    "cm.mra": "CM MsgRcptAck",
    "cm.rej": "CM ConnectReject",
    "cm.rep": "CM ConnectReply",
    "cm.rtu": "CM ReadyToUse",
    "cm.dreq": "CM DisconnectRequest",
    "cm.drsp": "CM DisconnectReply",
}

_REQ_PATH = (
    ("local_lid", "locallid"), ("remote_lid", "remotelid"), ("flow_label", "flowlabel"),
    ("packet_rate", "pktrate"), ("traffic_class", "tfcclass"), ("hop_limit", "hoplim"),
    ("sl", "sl"), ("subnet_local", "subnetlocal"), ("local_ack_timeout", "localacktout"),
)  # fmt: skip
_COMM_IDS = "local_comm_id:localcommid remote_comm_id:remotecommid"

# layer, prefix, class, "attribute:name ..." - an empty name is the prefix alone
_ROWS: tuple[tuple[str, str, type[BitFields], str], ...] = (
    ("mad", "infiniband.mad", MadHeader,
     "base_version:baseversion mgmt_class:mgmtclass class_version:classversion method:method "
     "status:status class_specific:classspecific transaction_id:transactionid "
     "attribute_id:attributeid attribute_modifier:attributemodifier"),
    ("cm.req", "infiniband.cm.req", CmReq,
     "local_comm_id: service_id:serviceid local_ca_guid:localcaguid local_qkey:localqkey "
     "local_qpn:localqpn responder_resources:responderres local_eecn:localeecn "
     "initiator_depth:initdepth remote_eecn:remoteeecn remote_cm_response_timeout:remoteresptout "
     "transport_type:transpsvctype end_to_end_flow_control:e2eflowctrl starting_psn:startpsn "
     "local_cm_response_timeout:localresptout retry_count:retrcount partition_key:pkey "
     "path_mtu:pppmtu rdc_exists:rdcexist rnr_retry_count:rnrretrcount max_cm_retries:maxcmretr "
     "srq:srq extended_transport_type:ext_transport "
     + " ".join(f"{path}_{ours}:{theirs}_{name}"
                for path, theirs in (("primary", "prim"), ("alternate", "alt"))
                for ours, name in _REQ_PATH)
     + " alternate_local_gid:alt_localgid alternate_remote_gid:alt_remotegid"),
    ("cm.mra", "infiniband.cm.mra", CmMra,
     f"{_COMM_IDS} message:msgmraed service_timeout:servicetimeout"),
    ("cm.rej", "infiniband.cm.rej", CmRej,
     f"{_COMM_IDS} message:msgrej info_length:rejinfolen reason:reason info:ari"),
    ("cm.rep", "infiniband.cm.rep", CmRep,
     "local_comm_id: remote_comm_id:remotecommid local_qkey:localqkey local_qpn:localqpn "
     "local_eecn:localeecn starting_psn:startpsn responder_resources:respres "
     "initiator_depth:initdepth target_ack_delay:tgtackdelay failover_accepted:failoveracc "
     "end_to_end_flow_control:e2eflowctrl rnr_retry_count:rnrretrcount srq:srq "
     "local_ca_guid:localcaguid"),
    ("cm.rtu", "infiniband.cm.rtu", CmRtu, _COMM_IDS),
    ("cm.dreq", "infiniband.cm.dreq", CmDreq, _COMM_IDS),
    ("cm.drsp", "infiniband.cm.drsp", CmDrep, _COMM_IDS),
    ("cm.dreq", "infiniband.cm.req", CmDreq, "remote_qpn:remoteqpneecn"),  # Wireshark's slip
    ("cm.req:ip", "infiniband.cm.req.ip_cm", IpCmHeader, "ip_version:ipv source_port:sport"),
)  # fmt: skip

# Names whose labels cannot be made from ours; GIDs, private data and the IP header's addresses are
# at the same place whatever they are called.
_SPECIAL: tuple[tuple[str, str, int, int, Kind], ...] = (
    ("cm.req:service", "infiniband.cm.req.serviceid.prefix", 8, 40, Kind.BYTES),
    ("cm.req:service", "infiniband.cm.req.serviceid.protocol", 13, 8, Kind.HEX),
    ("cm.req:service", "infiniband.cm.req.serviceid.dport", 14, 16, Kind.HEX),
    ("cm.req:local4", "infiniband.cm.req.prim_localgid_ipv4", 68, 32, Kind.IPV4),
    ("cm.req:local6", "infiniband.cm.req.prim_localgid", 56, 128, Kind.IPV6),
    ("cm.req:remote4", "infiniband.cm.req.prim_remotegid_ipv4", 84, 32, Kind.IPV4),
    ("cm.req:remote6", "infiniband.cm.req.prim_remotegid", 72, 128, Kind.IPV6),
    ("cm.req:private", "infiniband.cm.req.private", 140, 92 * 8, Kind.BYTES),
    ("cm.req:ip", "infiniband.cm.req.ip_cm", 0, 0, Kind.BYTES),
    ("cm.req:ip", "infiniband.cm.req.ip_cm.majv", 0, 4, Kind.HEX),
    ("cm.req:ip", "infiniband.cm.req.ip_cm.private", 36, 56 * 8, Kind.BYTES),
    ("cm.req:ip4", "infiniband.cm.req.ip_cm.sip4", 16, 32, Kind.IPV4),
    ("cm.req:ip4", "infiniband.cm.req.ip_cm.dip4", 32, 32, Kind.IPV4),
    ("cm.req:ip6", "infiniband.cm.req.ip_cm.sip6", 4, 128, Kind.IPV6),
    ("cm.req:ip6", "infiniband.cm.req.ip_cm.dip6", 20, 128, Kind.IPV6),
    ("cm.mra", "infiniband.cm.mra.private", 10, 222 * 8, Kind.BYTES),
    ("cm.rej", "infiniband.cm.rej.private", 84, 148 * 8, Kind.BYTES),
    ("cm.rep", "infiniband.cm.rep.private", 36, 196 * 8, Kind.BYTES),
    ("cm.rtu", "infiniband.cm.rtu.private", 8, 224 * 8, Kind.BYTES),
    ("cm.dreq", "infiniband.cm.dreq.private", 12, 220 * 8, Kind.BYTES),
    ("cm.drsp", "infiniband.cm.drsp.private", 8, 224 * 8, Kind.BYTES),
    ("mad", "infiniband.mad.data", 24, 232 * 8, Kind.BYTES),
)


def _named(kind: type[IntEnum]) -> Callable[[int], str]:
    names = {int(member): member.name for member in kind}
    return lambda value: names.get(value, "reserved")


_WORDS = {
    "infiniband.mad.attributeid": _named(CmAttribute),
    "infiniband.cm.rej.reason": _named(RejReason),
}
_DECIMAL = ("_lid",)
_ACRONYMS = frozenset(
    ("ack", "ari", "ca", "cm", "eecn", "gid", "guid", "id", "ip", "lid", "mtu", "psn", "qkey",
     "qpn", "rdc", "rnr", "sl", "srq")
)  # fmt: skip


def _label(name: str) -> str:
    words = [word.upper() if word in _ACRONYMS else word for word in name.split("_")]
    return " ".join([words[0][0].upper() + words[0][1:], *words[1:]])


def _fields() -> Iterable[Field]:
    for layer, prefix, cls, names in _ROWS:
        rows = {row.name: row for row in layout(cls)}
        for attribute, _, suffix in (entry.partition(":") for entry in names.split()):
            row = rows[attribute]
            name = f"{prefix}.{suffix}" if suffix else prefix
            kind = Kind.BYTES if row.kind is bytes else Kind.HEX
            if attribute.endswith(_DECIMAL):
                kind = Kind.DEC
            label = _label(attribute)
            yield Field(name, layer, row.start, row.bits, kind, label, _WORDS.get(name))
    for layer, name, byte, bits, kind in _SPECIAL:
        label = _label(name.rpartition(".")[2])
        yield Field(name, layer, byte * 8, bits, kind, label)


CM_FIELDS: tuple[Field, ...] = tuple(_fields())
