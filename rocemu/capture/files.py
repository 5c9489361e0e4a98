"""Captures by path; ``-`` is standard input or output."""

import os
import sys
from typing import BinaryIO

from rocemu.capture.compression import decompressed
from rocemu.capture.erf import ErfReader
from rocemu.capture.model import CaptureError, CaptureReader, DamagedError
from rocemu.capture.pcap import PcapReader
from rocemu.capture.pcapng import PcapngReader

__all__ = ["create_file", "open_capture", "open_file", "read_capture"]

_BUFFER = 1 << 18


def read_capture(file: BinaryIO) -> CaptureReader:
    """A reader for whatever format ``file`` has; it is buffered and need not be seekable.

    pcap, pcapng and ERF, each also within gzip or zstd.  Raises CaptureError for a file that is no
    capture.
    """
    try:
        file = decompressed(file)
        head = file.read(4)
        if head == PcapngReader.MAGIC:
            return PcapngReader(file, head)
        if head in PcapReader.MAGICS:
            return PcapReader(file, head)
        return ErfReader(file, head)
    except DamagedError as error:
        raise CaptureError(str(error)) from None


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A buffered file to read, standard input for ``-``; raises OSError."""
    if os.fspath(path) == "-":
        return open(os.dup(sys.stdin.fileno()), "rb", buffering=_BUFFER)
    return open(path, "rb", buffering=_BUFFER)


def open_capture(path: str | os.PathLike[str]) -> CaptureReader:
    """Open a capture for reading; raises OSError, and CaptureError naming the path."""
    file = open_file(path)
    try:
        return read_capture(file)
    except CaptureError as error:
        file.close()
        raise CaptureError(f"{os.fspath(path)}: {error}") from None


def create_file(path: str | os.PathLike[str], *, replace: bool = True) -> BinaryIO:
    """A binary file to write a capture to, mode 0644; one that exists is emptied.

    Standard output is duplicated: closing the file, or a broken pipe at its end, leaves
    ``sys.stdout`` as it was.  Raises OSError; FileExistsError for an existing file without
    ``replace``, unless it is none that keeps anything (a pipe, a terminal, ``/dev/null``).
    """
    if os.fspath(path) == "-":
        return open(os.dup(sys.stdout.fileno()), "wb", buffering=_BUFFER)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    keeps = os.path.isfile(path)
    descriptor = os.open(path, flags | (os.O_TRUNC if replace or not keeps else os.O_EXCL), 0o644)
    return open(descriptor, "wb", buffering=_BUFFER)
