"""Remotes: clouds elsewhere that the user has given names. Effects: files in the user's configuration directory.

    ~/.config/atoll/remote          the name of the one that `atoll remote use` chose; no file: that on this machine
    ~/.config/atoll/remotes/NAME/   remote.json, ca.pem, user.key, user.pem; request.pem until there is a certificate

All of it is for the user alone. A remote is whole or not there: it is made beside its place, and moved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.api import reaching
from atoll.api.reaching import Address
from atoll.errors import AtollError, Conflict, HostFailure, Invalid, Malformed, NotFound
from atoll.model.checks import check_name

LOCAL = "local"
"""The cloud on this machine, which needs no entry."""
_CHOSEN = "remote"
_RECORD = "remote.json"
_MAX_BYTES = 64 << 10


class Remote(Struct, frozen=True):
    """remote.json: where a cloud is, and by whom its certificate was asked for."""

    addresses: tuple[str, ...]
    user: str = ""


class Found(Struct, frozen=True):
    """A remote, and where its files are."""

    name: str
    directory: Path
    record: Remote

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(reaching.parse("address", text, 0) for text in self.record.addresses)

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def cert(self) -> Path:
        return self.directory / "user.pem"

    @property
    def key(self) -> Path:
        return self.directory / "user.key"

    @property
    def request(self) -> Path:
        return self.directory / "request.pem"

    @property
    def is_whole(self) -> bool:
        """It has its certificate."""
        return self.cert.exists()


def config_dir(environment: Mapping[str, str] = os.environ) -> Path:
    config, home = environment.get("XDG_CONFIG_HOME"), environment.get("HOME")
    if not config and not home:
        raise HostFailure(
            "remotes are kept in the home directory, and there is none", hint="set HOME or XDG_CONFIG_HOME"
        )
    return Path(config or f"{home}/.config") / "atoll"


def check_remote_name(name: str) -> str:
    if name == LOCAL:
        raise Invalid("remote", name, "is the cloud on this machine", hint="choose another name")
    return check_name("remote", name)


def place_of(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    return config_dir(environment) / "remotes" / check_remote_name(name)


def load(name: str, environment: Mapping[str, str] = os.environ) -> Found:
    directory = place_of(name, environment)
    path = directory / _RECORD
    if not path.exists() and _before(directory).exists():
        _put_back(directory)
    try:
        with path.open("rb") as file:
            record = msgspec.json.decode(file.read(_MAX_BYTES), type=Remote)
        found = Found(name, directory, record)
        if not found.addresses:
            raise Invalid("addresses", "()", "names no address")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"remote {name}: there is none of that name", hint="see: atoll remote list") from None
    except OSError as error:
        raise HostFailure(f"reading {path}: {(error.strerror or str(error)).lower()}") from None
    except (msgspec.MsgspecError, AtollError) as error:
        raise Malformed(f"{path}: {error}", hint=f"add it anew: atoll remote add --replace {name}") from None
    return found


def usable(name: str, environment: Mapping[str, str] = os.environ) -> Found:
    """One that has its certificate."""
    found = load(name, environment)
    if not found.is_whole:
        raise Conflict(
            f"remote {name} waits for its certificate",
            hint=f"have {found.request} signed, then: atoll remote add {name} --certificate FILE",
        )
    return found


def names(environment: Mapping[str, str] = os.environ) -> list[str]:
    try:
        entries = sorted((config_dir(environment) / "remotes").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [entry.name for entry in entries if (entry / _RECORD).is_file() and not entry.name.startswith(".")]


def chosen(environment: Mapping[str, str] = os.environ) -> str | None:
    """What `atoll remote use` chose."""
    try:
        with (config_dir(environment) / _CHOSEN).open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").strip() or None
    except (OSError, HostFailure):
        return None


def use(name: str, environment: Mapping[str, str] = os.environ) -> None:
    from atoll.system import files

    if name == LOCAL:
        (config_dir(environment) / _CHOSEN).unlink(missing_ok=True)
        return
    load(name, environment)
    files.write_durably(config_dir(environment) / _CHOSEN, f"{name}\n".encode())


def remove(name: str, environment: Mapping[str, str] = os.environ) -> None:
    """The remote and all its files. If it is the chosen one, it is the cloud on this machine from now on."""
    from atoll.system import files

    directory = place_of(name, environment)
    if chosen(environment) == name:
        use(LOCAL, environment)
    files.remove_tree(directory)


class Making:
    """A remote that is being made: `with Making(name) as made:`, write its files, `finish`. Else nothing is left.

    One at a time: what somebody left who was killed is known by its name, and goes.
    """

    def __init__(
        self, name: str, *, replace: bool = False, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.name = name
        self._place = place_of(name, environment)
        self._replace = replace
        self._directory = self._place.with_name(f".{name}.new")
        self._stack = ExitStack()

    def __enter__(self) -> Making:
        from atoll.system import files

        files.make_dirs(self._place.parent)
        with ExitStack() as stack:
            stack.enter_context(files.exclusive(self._place.parent / ".lock"))
            _put_back(self._place)
            if self._place.exists() and not self._replace:
                raise Conflict(
                    f"remote {self.name}: there is one already", hint="choose another name, or say --replace"
                )
            files.remove_tree(self._directory)
            stack.callback(files.remove_tree, self._directory)
            files.make_dirs(self._directory)
            self._stack = stack.pop_all()
        return self

    def write(self, name: str, data: bytes) -> Path:
        from atoll.system import files

        files.write_durably(self._directory / name, data)
        return self._directory / name

    def finish(self, record: Remote) -> Found:
        """It is there from now on, in the place of the one before."""
        from atoll.system import files

        self.write(_RECORD, msgspec.json.encode(record))
        before = _before(self._place)
        if self._place.exists():
            self._place.rename(before)
        self._directory.rename(self._place)
        files.sync_dir(self._place.parent)
        files.remove_tree(before)
        return Found(self.name, self._place, record)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _before(place: Path) -> Path:
    """Where a remote is while another one takes its place."""
    return place.with_name(f".{place.name}.before")


def _put_back(place: Path) -> None:
    """What somebody who was killed in between left there; or remove it, where the other one came."""
    from atoll.system import files

    if place.exists():
        files.remove_tree(_before(place))
    else:
        with suppress(FileNotFoundError):
            _before(place).rename(place)
