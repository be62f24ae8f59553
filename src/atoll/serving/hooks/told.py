"""What a hook was told of each VM, on disk: one small file each. Effects: that directory."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from atoll.serving.hooks.backlog import Notice, NoticeKind, VmView
from atoll.system import files

log = logging.getLogger(__name__)

_SUFFIX = ".json"
_LARGEST = 1 << 16


class Told:
    """Blocks on disks: for use in a thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> dict[str, VmView]:
        """By instance id. What cannot be read is told again."""
        files.make_dirs(self._directory)
        files.remove_leftovers(self._directory)
        found = {}
        for path in self._directory.glob(f"*{_SUFFIX}"):
            try:
                view = msgspec.json.decode(files.read_limited(path, _LARGEST), type=VmView)
                found[view.instance_id] = view
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("%s cannot be read, and is told again: %s", path, error)
                files.remove_tree(path)
        return found

    def note(self, notice: Notice) -> None:
        """This was delivered."""
        path = self._directory / f"{notice.vm.instance_id}{_SUFFIX}"
        if notice.event is NoticeKind.DESTROYED:
            files.remove_tree(path)
        else:
            files.write_durably(path, msgspec.json.encode(notice.vm))
