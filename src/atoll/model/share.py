"""Folders of a node that guests may have: what an operator allows, and where a VM has one. Pure values."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Invalid
from atoll.model.checks import Name, Principal, check_name, check_pattern, check_principal

MAX_SHARES = 128
"""Folders that a node has for guests."""
MAX_MOUNTS = 8
"""Folders that one VM can have."""
MAX_ALLOWED = 64
"""Users, and groups, that one folder is for."""
HOST_PATH_PATTERN = r"^(/[^/\x00-\x1f\x7f]{1,255})+$"
GUEST_PATH_PATTERN = r"^(/[A-Za-z0-9._+@-]{1,64})+$"
_MAX_HOST_PATH = 1024
_MAX_GUEST_PATH = 256
_LONGEST_TAG = 36

HostPath = Annotated[
    str, Meta(pattern=HOST_PATH_PATTERN, max_length=_MAX_HOST_PATH, description="a folder of the node")
]
GuestPath = Annotated[
    str, Meta(pattern=GUEST_PATH_PATTERN, max_length=_MAX_GUEST_PATH, description="a place in a guest")
]
Allowed = Annotated[tuple[Principal, ...], Meta(max_length=MAX_ALLOWED)]

_GUESTS_OWN = ("/dev", "/proc", "/run", "/sys", "/tmp")  # noqa: S108 - the guest's
"""What guests mount file systems of their own on, which would hide a folder there."""


class Share(Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of the node that guests may have. Without users, groups and `everyone` it is for operators."""

    name: Name
    """What users call it."""
    path: HostPath
    """The folder itself: no link is followed. Guests write as its owner, who must not be root."""
    read_only: bool = False
    """Guests only read."""
    users: Allowed = ()
    """Users who may have it in their guests."""
    groups: Allowed = ()
    """Groups of users who may."""
    everyone: bool = False
    """All users may."""

    def __post_init__(self) -> None:
        check_name("share", self.name)
        check_host_path("path", self.path)
        for who in (self.users, self.groups):
            if len(who) > MAX_ALLOWED:
                raise Invalid("share", f"{len(who)} of them", f"is for at most {MAX_ALLOWED}")
            for one in who:
                check_principal("share", one)

    @property
    def holder(self) -> str:
        """What the audit log calls it."""
        return f"share {self.name}"

    @property
    def access(self) -> str:
        return "read-only" if self.read_only else "read-write"


class ShareMount(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a VM has a folder of its node."""

    name: Name
    """That of the share."""
    path: GuestPath
    read_only: bool = False
    """Also where the share itself is not."""

    def __post_init__(self) -> None:
        check_name("share", self.name)
        check_guest_path("share", self.path)

    def __str__(self) -> str:
        return f"{self.name}:{self.path}{':ro' if self.read_only else ''}"


class ShareOrigin(StrEnum):
    CONFIGURATION = "configuration"
    """The node's file has it: no call changes it."""
    COMMAND = "command"
    """An operator allowed it by a call."""


class ShareUse(Struct, frozen=True):
    """A share as somebody sees it. Where it is, whom it is for and what is wrong with it is for operators."""

    name: str
    read_only: bool
    origin: ShareOrigin
    everyone: bool = False
    path: str = ""
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    """The names of those that have it."""
    problem: str = ""
    """Why no VM can be started with it just now; empty: they can."""


Mounts = Annotated[tuple[ShareMount, ...], Meta(max_length=MAX_MOUNTS)]


def check_host_path(field: str, value: str) -> str:
    """A path that can only mean one thing. Whether it may be shared is for atoll.plan.shares to say."""
    shape = "an absolute path without control characters, '//' and a '/' at its end"
    check_pattern(field, value, HOST_PATH_PATTERN, shape, hint="for example /srv/data")
    if len(value) > _MAX_HOST_PATH or {".", ".."} & {*PurePosixPath(value).parts, *value.split("/")}:
        raise Invalid(field, value, "must be a path without . and ..", hint="write it out")
    return value


def check_guest_path(field: str, value: str) -> str:
    shape = "an absolute path of letters, digits and . _ + @ -"
    check_pattern(field, value, GUEST_PATH_PATTERN, shape, hint="for example data:/data, or data:/data:ro")
    if len(value) > _MAX_GUEST_PATH or {".", ".."} & set(value.split("/")):
        raise Invalid(field, value, "must be a path without . and ..", hint="write it out")
    for own in _GUESTS_OWN:
        if is_within(value, own):
            raise Invalid(
                field,
                value,
                f"guests have a file system of their own at {own}",
                hint="choose another place, such as /data",
            )
    return value


def check_mounts(mounts: tuple[ShareMount, ...]) -> None:
    if len(mounts) > MAX_MOUNTS:
        raise Invalid("share", f"{len(mounts)} folders", f"must be at most {MAX_MOUNTS}")
    for number, mount in enumerate(mounts):
        for other in mounts[:number]:
            if other.name == mount.name:
                raise Invalid("share", mount.name, "is named twice", hint="a VM has a folder in one place")
            if is_within(mount.path, other.path) or is_within(other.path, mount.path):
                raise Invalid(
                    "share", str(mount), f"is in the way of {other}", hint="choose places that are apart"
                )


def tag_of(name: str) -> str:
    """What guests with a kernel of their own know a share by: its name; of a long one the beginning, and what tells it
    from others."""
    if len(name) <= _LONGEST_TAG:
        return name
    rest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_TAG - len(rest) - 1]}-{rest}"


def is_within(path: str, directory: str) -> bool:
    """Whether it is this directory, or in it."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")
