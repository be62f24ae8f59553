"""Folders of the host for containers of an engine, which takes nothing but paths.

The engine is told a path that is ours alone. There a folder is mounted, from an open descriptor and with its owners
mapped, while the engine starts a container; then it is taken away again, and the container has a mount of its own.
An engine that starts the container without us finds no such path, and refuses.

    /run/atoll-shares/<machine>/<share>

All that in the mounts of the engine, which may be others than ours. Nothing here removes what is in a folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path, PurePosixPath

from atoll.drivers.machine import shared_folders
from atoll.drivers.machine.base import Machine, SharedFolder
from atoll.drivers.machine.docker.config import STAGE, stage_of
from atoll.drivers.machine.docker.parse import Info
from atoll.errors import Conflict, HostFailure
from atoll.system import aside, folders, mounts, pids, steps
from atoll.system.failures import failing, ignoring

_HOST_ROOT = 0


def check_engine(machine: Machine, info: Info) -> None:
    """Conflict where we do not know which users of the host those of a container are. Pure."""
    for option in ("userns", "rootless"):
        if machine.folders and info.has(option):
            raise Conflict(
                f"starting machine {machine.name}: shares: the engine maps the users of its containers ({option})",
                hint="use an engine that does not, or machines of kind lxc",
            )


class Stage:
    """Where folders are for the engine that listens at a socket."""

    def __init__(self, engine: Path) -> None:
        self._engine = engine

    @contextlib.asynccontextmanager
    async def furnished(self, machine: Machine) -> AsyncIterator[None]:
        """The folders of a machine are where the engine was told that they are."""
        if not machine.folders:
            yield
            return
        try:
            await aside.run(self._furnish, machine)
            steps.step("docker.staged")
            yield
        finally:
            await aside.run(self.clear, machine)

    def clear(self, machine: Machine) -> None:
        """Leave nothing of it there. Gone is fine."""
        self._clear(stage_of(machine.cgroup))

    def clear_all(self, cloud: str) -> None:
        """Of all machines of a cloud, which is named by its cgroup."""
        for directory in list(STAGE.glob(f"{stage_of(cloud).name}-*")):
            self._clear(directory)
        with failing(f"removing {STAGE}"), ignoring(errno.ENOENT, errno.ENOTEMPTY):
            STAGE.rmdir()

    def _clear(self, directory: Path) -> None:
        if directory.is_dir():
            self._inside(lambda: _empty(directory))

    def _furnish(self, machine: Machine) -> None:
        self.clear(machine)
        directory = stage_of(machine.cgroup)
        with failing(f"making {directory}"):
            STAGE.mkdir(0o700, exist_ok=True)
            directory.mkdir(0o700)
        for folder in machine.folders:
            # Copied among our mounts, where the folder is what the node knows, and put among those of the engine.
            with shared_folders.copied(folder, _HOST_ROOT) as copy:
                self._put(copy, directory, folder)

    def _put(self, copy: int, directory: Path, folder: SharedFolder) -> None:
        def put() -> None:
            place = PurePosixPath("/", folder.name)
            with folders.made_beneath(directory, place, _HOST_ROOT) as target:
                mounts.put(copy, target)

        with failing(f"share {folder.name}: handing it to the container engine"):
            self._inside(put)

    def _inside(self, function: Callable[[], None]) -> None:
        engine = pids.listener_of(self._engine)
        if engine is None:
            function()
        else:
            mounts.inside(engine, function)


def check_there(machine: Machine, pid: int) -> None:
    """HostFailure unless the container has what it was to have."""
    for folder in machine.folders:
        doing = f"starting machine {machine.name}: share {folder.name}"
        with failing(doing), contextlib.ExitStack() as stack:
            root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, root)
            try:
                found = folders.open_beneath(root, PurePosixPath(folder.target).relative_to("/"))
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise Conflict(
                    f"{doing}: {folder.target} is behind a symbolic link in the guest",
                    hint="choose another place for the folder",
                ) from None
            stack.callback(os.close, found)
            status, flags = os.fstat(found), os.fstatvfs(found).f_flag
            wanted = os.ST_NOSUID | os.ST_NODEV | (os.ST_RDONLY if folder.read_only else 0)
            if (status.st_dev, status.st_ino) != folder.node or flags & wanted != wanted:
                raise HostFailure(
                    f"{doing}: the engine did not mount {folder.source} as it was told",
                    hint="see the log of the engine",
                )


def _empty(directory: Path) -> None:
    with failing(f"clearing {directory}"):
        for place in list(directory.iterdir()):
            mounts.unmount_all(place)
            place.rmdir()
        directory.rmdir()
