"""Capture files, in and out: pcap and pcapng, and the UDP datagrams in their frames."""

from rocemu.capture.endpoint import EndpointCapture
from rocemu.capture.erf import ErfReader
from rocemu.capture.files import create_file, open_capture, open_file, read_capture
from rocemu.capture.frames import (
    Located,
    Network,
    UdpFrame,
    build_frame,
    decode_frame,
    locate,
    mac_of,
    udp_frame,
)
from rocemu.capture.model import (
    CapturedPacket,
    CaptureError,
    CaptureReader,
    Direction,
    ErfType,
    Interface,
    LinkType,
)
from rocemu.capture.pcap import PcapReader
from rocemu.capture.pcapng import PcapngReader, PcapngWriter

__all__ = [
    "CaptureError",
    "CaptureReader",
    "CapturedPacket",
    "Direction",
    "EndpointCapture",
    "ErfReader",
    "ErfType",
    "Interface",
    "LinkType",
    "Located",
    "Network",
    "PcapReader",
    "PcapngReader",
    "PcapngWriter",
    "UdpFrame",
    "build_frame",
    "create_file",
    "decode_frame",
    "locate",
    "mac_of",
    "open_capture",
    "open_file",
    "read_capture",
    "udp_frame",
]
