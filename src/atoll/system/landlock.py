"""Landlock: a thread, and all that it starts, opens nothing by name but what it was granted. Changes this thread.

The kernel knows it by a version (ABI); what a kernel does not know yet is not asked of it. Open files that somebody
is handed are not affected, nor are those that only exist in memory.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
from collections.abc import Sequence

from msgspec import Struct, structs

from atoll.system import libc

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_VERSION = 1
_PATH_BENEATH = 1

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
IOCTL_DEVICE = 1 << 15
ALL = (1 << 16) - 1
"""All rights over files that any version knows."""

# How many rights over files each version knows: refer came with 2, truncate with 3, ioctl on devices with 5.
_FILE_RIGHTS = ((1, 13), (2, 14), (3, 15), (5, 16))
_BIND_AND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class Grant(Struct, frozen=True):
    """What may be done with a file, or with all that is below a directory, that this descriptor is of."""

    descriptor: int
    rights: int


class Rules(Struct, frozen=True):
    """What is refused unless it was granted, as a bit for each right."""

    files: int
    network: int
    scoped: int

    def packed(self) -> bytes:
        return struct.pack("QQQ", self.files, self.network, self.scoped)


def rules_of(abi: int) -> Rules:
    """All that a kernel with this version can refuse. Pure."""
    count = max(count for since, count in _FILE_RIGHTS if abi >= since)
    return Rules(
        files=(1 << count) - 1,
        network=_BIND_AND_CONNECT_TCP if abi >= 4 else 0,
        scoped=_ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0,
    )


@functools.cache
def abi() -> int:
    """The version that this kernel knows; 0 where it has none, or was started without."""
    try:
        return libc.syscall(_CREATE_RULESET, None, 0, _VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return 0
        raise


def restrict(grants: Sequence[Grant], *, tcp: bool = False) -> None:
    """From here on this thread and its children have these rights alone, and TCP if that is given. Nothing happens
    without Landlock."""
    if abi() == 0:
        return
    rules = rules_of(abi())
    if tcp:
        rules = structs.replace(rules, network=0)
    packed = rules.packed()
    ruleset = libc.syscall(_CREATE_RULESET, packed, len(packed), 0)
    try:
        for grant in grants:
            rule = struct.pack("=Qi", grant.rights & rules.files, grant.descriptor)
            libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
        libc.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
