"""An attic: what was found and belongs to nobody, kept for a week before it goes. Moves and removes files.

<attic>/<when>-<name>    as it was found; the time is that at which it was put there
"""

from __future__ import annotations

import logging
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from atoll.errors import AtollError
from atoll.system import aside, files
from atoll.system.failures import failing

log = logging.getLogger(__name__)

KEPT_FOR = timedelta(days=7)
_STAMP = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"(\d{8}T\d{6}Z)-.")


class Kept(Struct, frozen=True):
    """Something in an attic."""

    path: Path
    until: datetime


class Attic:
    """One directory, on the file system of what is put into it. Every method may be called again."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, path: Path, name: str, now: datetime) -> Path:
        """Move it here; where it is now."""
        files.make_dirs(self._root)
        stem = f"{now.astimezone(UTC):{_STAMP}}-{name}"
        target, more = self._root / stem, 1
        with failing(f"moving {path} to {self._root}"):
            while os.path.lexists(target):
                more += 1
                target = self._root / f"{stem}-{more}"
            path.rename(target)
            files.sync_dir(self._root)
            files.sync_dir(path.parent)
        return target

    def kept(self) -> list[Kept]:
        """What is here, the oldest first. What others put here is theirs."""
        if not self._root.is_dir():
            return []
        found = ((path, _NAME.match(path.name)) for path in sorted(self._root.iterdir()))
        return [Kept(path, _moment(match.group(1)) + KEPT_FOR) for path, match in found if match]

    async def clear(self, now: datetime) -> None:
        """Remove what has been here for its time. What cannot be removed is logged, and tried again."""
        for kept in await aside.run(self.kept):
            if kept.until <= now:
                try:
                    await aside.remove_tree(kept.path)
                except AtollError as error:
                    log.error("%s", error)


def _moment(stamp: str) -> datetime:
    try:
        return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC)
    except ValueError:  # digits that are no date: no time of ours
        return datetime.max.replace(tzinfo=UTC) - KEPT_FOR
