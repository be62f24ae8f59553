"""What a VM can read about itself, as one tree of paths. Pure: server.py knows the caller and speaks HTTP.

    /datasource/…, /latest/…            SmallStack
    /latest/…, /<date>/…                EC2
    /openstack/<date or latest>/…       OpenStack
    /nocloud/…                          NoCloud
    /atoll/…                            our own: how owners log in

A directory lists its children, one per line, directories with a slash behind; the roots of EC2 and OpenStack
list versions, which have none.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from atoll.guestnet.http.found import TEXT, Found
from atoll.guestnet.metadata import ec2, nocloud, openstack, smallstack, ssh
from atoll.guestnet.metadata.guest import NOT_FOUND, Guest, Leaves

TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path

_Plant = Callable[[Guest], Leaves]


def respond(path: str, guest: Guest | None, now: datetime) -> Found:
    """What is at a path for this guest. A caller that is no guest finds nothing anywhere."""
    if guest is None:
        return NOT_FOUND
    directory = path if path.endswith("/") else f"{path}/"
    if directory == "/":
        return Found(200, TEXT, "\n".join(_tops(guest)).encode())
    if directory in _LISTINGS:
        return Found(200, TEXT, _LISTINGS[directory])
    root = next((root for root in _ROOTS if directory.startswith(root)), None)
    if root is None:
        return NOT_FOUND
    leaves = _ROOTS[root](guest)
    within = path[len(root) :]
    leaf = leaves.get(within) or leaves.get(directory[len(root) :])
    if leaf is None and within.startswith(ec2.META_DATA):
        # A value is there with a slash behind it too: botocore asks so for the zone.
        leaf = leaves.get(within.removesuffix("/"))
    if leaf is not None:
        return Found(200, leaf.content_type, leaf.read(now))
    children = _children(directory[len(root) :], leaves)
    return Found(200, TEXT, "\n".join(children).encode()) if children else NOT_FOUND


def wants_credentials(path: str) -> bool:
    """Whether an answer may hold what has to be issued first."""
    if path.endswith(smallstack.DOCUMENT):
        return False
    return path.startswith(f"/latest/{smallstack.IDENTITY}") or "/meta-data/iam" in path


def paths(guest: Guest) -> set[str]:
    """Everything that this guest can read."""
    return {root + path for root, plant in _ROOTS.items() for path in plant(guest) if not path.endswith("/")}


def _children(directory: str, leaves: Leaves) -> list[str]:
    below = [
        path.removeprefix(directory) for path in leaves if path.startswith(directory) and path != directory
    ]
    return sorted({rest[: rest.find("/") + 1] or rest for rest in below})


def _tops(guest: Guest) -> list[str]:
    own = ["atoll/"] if ssh.leaves(guest) else []
    return [*ec2.VERSIONS, "latest", *own, "datasource/", "nocloud/", "openstack/"]


def _latest(guest: Guest) -> Leaves:
    return ec2.leaves(guest) | smallstack.latest(guest)


_ROOTS: dict[str, _Plant] = {
    "/datasource/": smallstack.datasource,
    "/latest/": _latest,
    "/nocloud/": nocloud.leaves,
    "/atoll/": ssh.leaves,
    **{f"/{version}/": ec2.leaves for version in ec2.VERSIONS},
    **{f"/openstack/{version}/": openstack.leaves for version in openstack.VERSIONS},
}
_LISTINGS: dict[str, bytes] = {
    "/openstack/": "\n".join(openstack.VERSIONS).encode(),
}
