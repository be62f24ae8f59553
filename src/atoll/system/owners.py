"""Who holds something that agents of one host share: the state directory of an agent, and a mark in it.

The mark tells a directory from another one that was made later in the same place. A directory elsewhere that is an
agent's own says whose it is. Effects: one file in each of these directories.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.errors import AtollError, HostFailure
from atoll.system import files

_MARK = "mark"
_MARK_LIMIT = 64
HOLDER = ".owner"
"""The file in a directory that is an agent's own, outside of its state directory."""
_HOLDER_LIMIT = 8192


class Owner(Struct, frozen=True):
    """An agent, whichever process it is just now."""

    state: str
    """Its state directory, without links in the path."""
    mark: str


def owner_of(state: Path) -> Owner:
    """The agent with this state directory, which is there; marked now if it was not."""
    mark = _read(state)
    if not mark:
        mark = secrets.token_hex(16)
        files.write_durably(state / _MARK, mark.encode())
    return Owner(str(state.resolve()), mark)


def find_owner(state: Path) -> Owner | None:
    """The agent with this state directory; None when there never was one, or it is gone."""
    mark = _read(state)
    return Owner(str(state.resolve()), mark) if mark else None


def is_gone(owner: Owner) -> bool:
    """Its directory is not there any more, or is another one's by now."""
    return _read(Path(owner.state)) != owner.mark


def holder_of(place: Path) -> Owner | None:
    """The agent whose own this directory is; None when it does not say."""
    try:
        return msgspec.json.decode(files.read_limited(place / HOLDER, _HOLDER_LIMIT), type=Owner)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, AtollError, msgspec.MsgspecError) as error:
        raise HostFailure(f"reading {place / HOLDER}: {error}") from None


def hold(place: Path, owner: Owner) -> None:
    """From now on this directory says that it is this agent's own."""
    files.write_durably(place / HOLDER, msgspec.json.encode(owner))


def _read(state: Path) -> str:
    try:
        return files.read_limited(state / _MARK, _MARK_LIMIT).decode("ascii", "replace")
    except FileNotFoundError:
        return ""
