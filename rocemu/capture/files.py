"""Captures by path; ``-`` is standard input or output."""

import os
import sys
from typing import BinaryIO

from rocemu.capture.model import CaptureError, CaptureReader
from rocemu.capture.pcap import PcapReader
from rocemu.capture.pcapng import PcapngReader

__all__ = ["create_file", "open_capture", "read_capture"]

_BUFFER = 1 << 18


def read_capture(file: BinaryIO) -> CaptureReader:
    """A reader for whatever format ``file`` has, which need not be seekable.

    Raises CaptureError for a file that is no capture.
    """
    head = file.read(4)
    if head == PcapngReader.MAGIC:
        return PcapngReader(file, head)
    if head in PcapReader.MAGICS:
        return PcapReader(file, head)
    raise CaptureError(
        f"not a pcap or pcapng file: it begins with {head.hex(' ')}"
        if head
        else "the file is empty"
    )


def _open_file(path: str | os.PathLike[str]) -> BinaryIO:
    if os.fspath(path) == "-":
        return open(os.dup(sys.stdin.fileno()), "rb", buffering=_BUFFER)
    return open(path, "rb", buffering=_BUFFER)


def open_capture(path: str | os.PathLike[str]) -> CaptureReader:
    """Open a capture for reading; raises OSError, and CaptureError naming the path."""
    file = _open_file(path)
    try:
        return read_capture(file)
    except CaptureError as error:
        file.close()
        raise CaptureError(f"{os.fspath(path)}: {error}") from None


def create_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A binary file to write a capture to, mode 0644; one that exists is emptied.

    Standard output is duplicated: closing the file, or a broken pipe at its end, leaves
    ``sys.stdout`` as it was.  Raises OSError.
    """
    if os.fspath(path) == "-":
        return open(os.dup(sys.stdout.fileno()), "wb", buffering=_BUFFER)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    return open(descriptor, "wb", buffering=_BUFFER)
