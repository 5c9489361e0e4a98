"""A daemon's own capture: what it sent and received, written without root.

A UDP socket sees payloads only.  Around each the IP and UDP headers are built again, with the
addresses, ports and IP ID of the packet, so that its ICRC is right in the file exactly when it was
right on the wire.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from rocemu.capture.files import create_file
from rocemu.capture.frames import build_frame
from rocemu.capture.model import CapturedPacket, Direction, Interface
from rocemu.capture.pcapng import PcapngWriter
from rocemu.wire.icrc import Flow

__all__ = ["EndpointCapture"]


class EndpointCapture:
    """Both directions of an endpoint, in pcapng with Ethernet frames.

    A capture must not stop the daemon: the first OSError (disk full, reader of the pipe gone) is
    kept in ``error`` and given to ``on_error``, and nothing is written after it.  Times are
    nanoseconds since 1970, given by the caller.
    """

    def __init__(
        self,
        writer: PcapngWriter,
        interface: Interface,
        *,
        on_error: Callable[[OSError], None] | None = None,
    ) -> None:
        self.error: OSError | None = None
        self.packets = 0
        """Packets written so far."""
        self._writer: PcapngWriter | None = writer
        self._interface = interface
        self._on_error = on_error

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        description: str = "",
        comment: str = "",
        application: str = "rocemu",
        on_error: Callable[[OSError], None] | None = None,
    ) -> Self:
        """Write to ``path``, or to standard output for ``-``; a file that exists is replaced.

        ``name`` and ``description`` are the interface's, ``comment`` is the capture's.  Raises
        OSError when the file cannot be created.
        """
        interface = Interface(name=name, description=description)
        writer = PcapngWriter(
            create_file(path), [interface], comment=comment, application=application
        )
        capture = cls(writer, interface, on_error=on_error)
        capture.flush()
        return capture

    def sent(
        self, sealed: bytes, flow: Flow, ip_id: int, when: int, comment: str | None = None
    ) -> None:
        """A packet that left: BTH to ICRC, the flow and IP ID that it was sealed for."""
        frame = build_frame(flow, ip_id, sealed)
        self._write(frame, when, Direction.OUT, (comment,) if comment else ())

    def received(
        self,
        datagram: bytes,
        flow: Flow,
        ip_id: int,
        when: int,
        comment: str | None = None,
        *,
        tos: int | None = None,
        ttl: int | None = None,
    ) -> None:
        """A datagram as it came, its ICRC with it, right or wrong.

        ``flow`` as the packet came: source is the sender.  ``ip_id`` is the one seen or solved
        for.  ``tos`` and ``ttl`` where the socket showed them, else those of the flow are written.
        """
        frame = build_frame(flow, ip_id, datagram, tos=tos, ttl=ttl)
        self._write(frame, when, Direction.IN, (comment,) if comment else ())

    def _write(
        self, frame: bytes, when: int, direction: Direction, comments: tuple[str, ...]
    ) -> None:
        if self._writer is None:
            return
        packet = CapturedPacket(when, frame, len(frame), self._interface, comments, direction)
        try:
            self._writer.write(packet)
        except OSError as error:
            self._fail(self._writer, error)
        else:
            self.packets += 1

    def flush(self) -> None:
        """Hand what was written to the file: after each batch, so that a reader sees it live."""
        if self._writer is None:
            return
        try:
            self._writer.flush()
        except OSError as error:
            self._fail(self._writer, error)

    def close(self) -> None:
        """Flush and close; nothing is written after that."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except OSError as error:
            self._report(error)

    def _fail(self, writer: PcapngWriter, error: OSError) -> None:
        self._writer = None
        with suppress(OSError):  # closing tries to flush again
            writer.close()
        self._report(error)

    def _report(self, error: OSError) -> None:
        self.error = error
        if self._on_error:
            self._on_error(error)
