"""What a hook is: a command, or a URL, and how it is called. Pure values."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from atoll.errors import Invalid, Malformed
from atoll.model.checks import check_range

NOBODY = "nobody"
MOST = 16


class HookConfig(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of `command` and `url`. A command is given the notice on its standard input, a URL by POST."""

    command: tuple[str, ...] = ()
    user: str = NOBODY
    """As whom the command runs."""
    url: str = ""
    ca: Path | None = None
    """Who vouches for the server; none: whom the host believes."""
    certificate: Path | None = None
    key: Path | None = None
    """What is shown to the server, if anything."""
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise Invalid("hook", "command and url", "one of them is needed, and only one")
        if self.command and not self.command[0].startswith("/"):
            raise Invalid("hook command", self.command[0], "must be the whole path of a program")
        if self.url and not _is_https(self.url):
            # Not the URL itself: there may be a secret in it.
            raise Invalid("hook url", self.name, "must begin with https:// and name a host")
        if (self.certificate is None) != (self.key is None):
            raise Invalid("hook", "certificate and key", "either both or none are needed")
        check_range("hook timeout_s", int(self.timeout_s), 1, 300, "seconds")

    @property
    def name(self) -> str:
        """How it is called in logs."""
        return self.command[0] if self.command else f"https://{_host(self.url)}"

    @property
    def id(self) -> str:
        """The same as long as it leads to the same place."""
        return hashlib.sha256("\0".join((*self.command, self.url)).encode()).hexdigest()[:16]


def check_hooks(hooks: tuple[HookConfig, ...]) -> tuple[HookConfig, ...]:
    if len(hooks) > MOST:
        raise Invalid("hooks", f"{len(hooks)} hooks", f"must be at most {MOST}")
    if len({hook.id for hook in hooks}) < len(hooks):
        raise Invalid("hooks", hooks[0].name, "one is there twice")
    return hooks


def parse(data: bytes, source: str) -> tuple[HookConfig, ...]:
    """The hooks in a file: a JSON list."""
    try:
        return check_hooks(msgspec.json.decode(data, type=tuple[HookConfig, ...], dec_hook=_decode))
    except msgspec.MsgspecError as error:
        raise Malformed(f"reading hooks in {source}: {error}") from None


def _decode(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"expected {kind.__name__}")


def _is_https(url: str) -> bool:
    return url.startswith("https://") and bool(_host(url))


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
