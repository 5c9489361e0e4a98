"""What daemons are started with: one dataclass a daemon, filled from a TOML file and options.

The keys of a file are the names of the options, ``qp-access = "remote_read"``; an option given on
the command line wins.  Every value passes the same converter, so a mistake gets the same sentence
wherever it was made.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from rocemu.daemon.operations import Operation, parse_operations
from rocemu.daemon.regions import RegionSpec, parse_size
from rocemu.net import DEFAULT_PORT, FaultRule, IcrcPolicy
from rocemu.net.connection import ALL_REMOTE
from rocemu.protection import parse_access
from rocemu.transport import PROFILES, SPEC, Profile
from rocemu.verbs import MTU, AccessFlags, WCStatus, mtu_enum

__all__ = ["ConfigError", "DaemonConfig", "RequesterConfig", "ResponderConfig"]


class ConfigError(ValueError):
    """A field has a value that it cannot have; ``option`` names it as on the command line."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(problem)
        self.option = name if name.isupper() else "--" + name.replace("_", "-")


def _number(least: int, most: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        try:
            number = int(value, 0) if isinstance(value, str) else value
        except ValueError:
            number = None
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError(f"{value!r}: allowed are {least} to {most}")
        return number

    return convert


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r}: a text is needed")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r}: allowed are true and false")
    return value


def _list(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def convert_all(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{value!r}: a list is needed")
        return [convert(item) for item in value]

    return convert_all


def _icrc(value: Any) -> IcrcPolicy:
    try:
        return IcrcPolicy(value)
    except ValueError:
        raise ValueError(f"{value!r}: allowed are {', '.join(IcrcPolicy)}") from None


_LARGEST_RECEIVE = 16 << 20


def _profile(value: Any) -> Profile:
    if value not in PROFILES:
        raise ValueError(f"{value!r}: allowed are {', '.join(PROFILES)}")
    return PROFILES[value]


def _receives(value: Any) -> tuple[int, int]:
    """``N[:SIZE]``: how many receives are kept posted, and the bytes of each."""
    count, colon, size = str(value).partition(":")
    number, each = _number(0, 1024)(count), parse_size(size) if colon else 4096
    if each > _LARGEST_RECEIVE:
        raise ValueError(f"size {size}: allowed are 0 to 16M")
    return number, each


def _statuses(value: Any) -> list[WCStatus]:
    names = value.split(",") if isinstance(value, str) else _list(_text)(value)
    known = {status.name.removeprefix("IBV_WC_"): status for status in WCStatus}
    found = []
    for name in names:
        status = known.get(str(name).strip().upper().removeprefix("IBV_WC_"))
        if status is None:
            raise ValueError(f"no status {name!r}; there are {', '.join(known)}")
        found.append(status)
    return found


_PSN, _QPN = _number(0, 0xFFFFFF), _number(2, 0xFFFFFE)

_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "bind": _text,
    "port": _number(1, 65535),
    "mr": _list(lambda value: RegionSpec.parse(_text(value))),
    "icrc": _icrc,
    "capture": _text,
    "control": lambda value: Path(_text(value)),
    "json": _flag,
    "seed": _number(0, (1 << 63) - 1),
    "fault": _list(lambda value: FaultRule.parse(_text(value))),
    "static": _flag,
    "remote": _text,
    "qpn": _QPN,
    "psn": _PSN,
    "remote_qpn": _QPN,
    "remote_psn": _PSN,
    "mtu": lambda value: mtu_enum(_number(256, 4096)(value)),
    "timeout": _number(0, 31),
    "retry_count": _number(0, 7),
    "rnr_retry": _number(0, 7),
    "rnr_timer": _number(0, 31),
    "qp_access": lambda value: parse_access(_text(value)),
    "profile": _profile,
    "tos": _number(0, 255),
    "ttl": _number(1, 255),
    "migreq": _flag,
    "pkey": _number(1, 0xFFFF),
    "recv": _receives,
    "other_pd": _list(_text),
    "operations": lambda value: parse_operations(_list(_text)(value)),
    "tx_depth": _number(1, 512),
    "expect": _statuses,
    "daemon": _flag,
}


@dataclass(slots=True, kw_only=True)
class DaemonConfig:
    """What both daemons take; field names are option names."""

    arguments: ClassVar[dict[str, str]] = {}
    """Fields that are no options on the command line: field -> name of the argument."""
    bind: str | None = None
    """Address of this host; None: 127.0.0.1, for a requester the one that routes to HOST."""
    port: int = DEFAULT_PORT
    """CM port: the service that is listened on or connected to."""
    mr: list[RegionSpec] = field(default_factory=list)
    icrc: IcrcPolicy = IcrcPolicy.VERIFY
    capture: str | None = None
    control: Path | None = None
    json: bool = False
    seed: int | None = None
    fault: list[FaultRule] = field(default_factory=list)
    static: bool = False
    remote: str | None = None
    """The peer's host: needed by a requester, and by a responder in static mode."""
    qpn: int | None = None
    psn: int | None = None
    remote_qpn: int | None = None
    remote_psn: int | None = None
    mtu: MTU | None = None
    """Path MTU; None is the largest that the way takes."""
    timeout: int = 16
    """Local ACK timeout, 4.096 us * 2^n: 268 ms."""
    retry_count: int = 7
    rnr_retry: int = 6
    """7, the field's usual value, is for ever: a command that is typed should come back."""
    rnr_timer: int = 12
    qp_access: AccessFlags = ALL_REMOTE
    profile: Profile = SPEC
    tos: int = 0
    ttl: int = 64
    migreq: bool = False
    pkey: int = 0xFFFF

    @classmethod
    def build(cls, file: Path | None, options: Mapping[str, Any]) -> Self:
        """From a TOML file and the options that were given (None: not given).

        Raises :class:`ConfigError` naming the field.
        """
        values = _from_file(file) if file is not None else {}
        values |= {name: value for name, value in options.items() if value is not None}
        known = {f.name for f in fields(cls)}
        converted = {}
        for name, value in values.items():
            if name not in known:
                names = ", ".join(sorted(n.replace("_", "-") for n in known))
                raise ConfigError("config", f"{file}: no field {name!r}; there are {names}")
            try:
                converted[name] = _CONVERTERS[name](value)
            except ValueError as error:
                raise ConfigError(cls.arguments.get(name, name), str(error)) from None
        config = cls(**converted)
        config.check()
        return config

    def check(self) -> None:
        """What fields need of each other; raises :class:`ConfigError`."""
        names = [spec.name for spec in self.mr]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError("mr", f"region {name!r} is named twice")
        given = [n for n in ("remote_qpn", "remote_psn") if getattr(self, n) is not None]
        if self.static and len(given) < 2:
            raise ConfigError("static", "static mode needs --remote-qpn and --remote-psn")
        if not self.static:
            for name in (*given, *(n for n in ("qpn", "psn") if getattr(self, n) is not None)):
                raise ConfigError(name, "only with --static; the connection manager chooses it")


@dataclass(slots=True, kw_only=True)
class ResponderConfig(DaemonConfig):
    """What a responder is started with."""

    recv: tuple[int, int] = (4, 4096)
    """Receives kept posted on each connection, and the bytes of each."""
    other_pd: list[str] = field(default_factory=list)
    """Names of regions that go into a second protection domain, which no queue pair is in."""

    def check(self) -> None:
        DaemonConfig.check(self)
        names = [spec.name for spec in self.mr]
        for name in self.other_pd:
            if name not in names:
                known = ", ".join(names) or "none"
                raise ConfigError("other_pd", f"no region {name!r}; there are {known}")
        if self.static and self.remote is None:
            raise ConfigError("static", "static mode of a responder needs --remote HOST")
        if not self.static and self.remote is not None:
            raise ConfigError("remote", "only with --static; anybody may connect otherwise")


@dataclass(slots=True, kw_only=True)
class RequesterConfig(DaemonConfig):
    """What a requester is started with."""

    arguments: ClassVar[dict[str, str]] = {"remote": "HOST", "operations": "OPERATION"}
    operations: list[Operation] = field(default_factory=list)
    tx_depth: int = 1
    """Operations that are posted and not complete at once."""
    expect: list[WCStatus] | None = None
    daemon: bool = False

    def check(self) -> None:
        DaemonConfig.check(self)
        if self.remote is None:
            raise ConfigError("HOST", "the responder's name or address is needed")
        if self.daemon and self.control is None:
            raise ConfigError("daemon", "needs --control PATH, or nothing could be asked of it")
        names = [spec.name for spec in self.mr]
        for operation in self.operations:
            if operation.local is not None and operation.local.name not in names:
                known = ", ".join(names) or "none"
                what = f"{operation.text!r}: no region {operation.local.name!r} of our own (--mr)"
                raise ConfigError("OPERATION", f"{what}; there are: {known}")


def _from_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            values = tomllib.load(stream)
    except OSError as error:
        raise ConfigError("config", f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{file} is not TOML: {error}") from None
    return {name.replace("-", "_"): value for name, value in values.items()}
