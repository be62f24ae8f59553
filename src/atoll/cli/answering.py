"""Which of a service's addresses answered last, so that the next command tries it first.

Effects: a small file in the user's cache directory. It is a hint: that it is missing, wrong or cannot be written
never matters. A service with one address has none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from atoll.api.reaching import Address, show
from atoll.cli.cache import cache_dir

_FILE = "addresses.json"
MAX_SERVICES = 64
_MAX_BYTES = 64 << 10


def in_order(
    addresses: tuple[Address, ...], environment: Mapping[str, str] = os.environ
) -> tuple[Address, ...]:
    """The same addresses, the one that answered last first."""
    if len(addresses) < 2:
        return addresses
    last = _read(_path(environment)).get(_key(addresses))
    return tuple(sorted(addresses, key=lambda address: show(address) != last))


def note(
    addresses: tuple[Address, ...], answered: Address, environment: Mapping[str, str] = os.environ
) -> None:
    """`addresses` in the order in which they were tried: if it was the first, there is nothing new to say."""
    path = _path(environment)
    if len(addresses) < 2 or answered == addresses[0] or path is None:
        return
    key = _key(addresses)
    others = [(known, last) for known, last in _read(path).items() if known != key]
    hints = dict([*others[-(MAX_SERVICES - 1) :], (key, show(answered))])
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(hints))
        fresh.replace(path)


def _key(addresses: tuple[Address, ...]) -> str:
    return " ".join(sorted(map(show, addresses)))


def _path(environment: Mapping[str, str]) -> Path | None:
    directory = cache_dir(environment)
    return directory / _FILE if directory is not None else None


def _read(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}
