"""Folders of the host in machines that have its kernel: mounted so that a guest's root is the folder's owner there.

Ids on disk are mapped by the mount: the owner of the folder is the guest's root, and nobody else is anybody. So what a
guest writes belongs to that owner, and a guest cannot make anything that would be root's. Mounts; no process of the
machine is needed.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from atoll.drivers.machine.base import SharedFolder
from atoll.errors import Conflict
from atoll.system import folders, mounts
from atoll.system.failures import failing
from atoll.system.mounts import IdRange


@contextlib.contextmanager
def copied(folder: SharedFolder, root: int) -> Iterator[int]:
    """A mount of it, for `mounts.put`. `root`: the user of the host who is the guest's root."""
    users, groups = ((IdRange(inside=one, outside=root, count=1),) for one in (folder.uid, folder.gid))
    with contextlib.ExitStack() as stack:
        with failing(f"share {folder.name}: mounting {folder.source}"):
            source = stack.enter_context(folders.opened(folder.source, folder.node))
            with mounts.user_namespace(users, groups) as ids:
                copy = stack.enter_context(_copy_of(folder, source, ids(), root))
        yield copy


@contextlib.contextmanager
def _copy_of(folder: SharedFolder, source: int, ids: int, root: int) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(mounts.copy_of(source, ids, read_only=folder.read_only))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            if not folder.read_only or root == 0:
                raise Conflict(
                    f"share {folder.name}: the file system of {folder.source} cannot map owners",
                    hint="use one that can, such as ext4, xfs, btrfs or tmpfs"
                    + ("; or have it read-only, with what everybody may read" if root else ""),
                ) from None
            # Nobody's files to the guest, and it is nobody to them.
            copy = stack.enter_context(mounts.copy_of(source, None, read_only=True))
        yield copy
