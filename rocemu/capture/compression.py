"""Compressed captures, read as they are: gzip and zstd."""

import gzip
import importlib
import io
import zlib
from typing import Any, BinaryIO

from rocemu.capture.model import CaptureError, DamagedError

__all__ = ["decompressed", "peek"]

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_BUFFER = 1 << 18


def decompressed(file: BinaryIO) -> BinaryIO:
    """``file`` itself, or a reader of what is compressed in it; it need not be seekable.

    ``file`` is buffered.  Reading raises DamagedError where the compressed stream is cut or makes
    no sense.  Raises CaptureError for zstd where nothing can read it.
    """
    start = peek(file, 4)
    stream: _Stream
    if start.startswith(_GZIP):
        stream = _Stream("gzip", gzip.GzipFile(fileobj=file), (OSError, zlib.error), file)
    elif start == _ZSTD:
        zstd = _zstd()
        stream = _Stream("zstd", zstd.ZstdFile(file), (OSError, zstd.ZstdError), file)
    else:
        return file
    return io.BufferedReader(stream, _BUFFER)


def peek(file: BinaryIO, size: int) -> bytes:
    """The first bytes of a file, buffered or in memory, which are read again after that."""
    look = getattr(file, "peek", None)
    if look is not None:
        start: bytes = look(size)[:size]
        return start
    start = file.read(size)
    file.seek(-len(start), io.SEEK_CUR)
    return start


def _zstd() -> Any:
    """Python 3.14's module, or its backport (``pip install rocemu[zstd]``)."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise CaptureError(
        "compressed with zstd, which needs Python 3.14 or rocemu[zstd]; "
        "`zstd -dc FILE | rocemu ... -r -` works too"
    )


class _Stream(io.RawIOBase):
    """What is compressed in a file; its errors are DamagedError, after all that could be read."""

    def __init__(
        self, name: str, source: Any, errors: tuple[type[Exception], ...], file: BinaryIO
    ) -> None:
        self._name = name
        self._source = source
        self._errors = errors
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._source.read1(len(buffer))
        except EOFError:
            raise DamagedError(f"the {self._name} stream ends before its end mark") from None
        except self._errors as error:
            raise DamagedError(f"the {self._name} stream is damaged ({error})") from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._source.close()
            self._file.close()
        super().close()
