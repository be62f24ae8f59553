"""Names for completion that only the node knows. Effects: asks it, for a second at most; keeps what it said for a
few seconds in the user's cache directory.

Nobody there, nobody who answers, no right to ask: then there are no names. A prompt is no place for errors.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from atoll.cli.cache import cache_dir
from atoll.cli.completing import Names, Next
from atoll.errors import AtollError

CACHE_S = 5.0
ASK_S = 1.0
_FILE = "completion.json"
_PLAIN = re.compile(r"[A-Za-z0-9@%_+=:,./-]+")
"""What a shell takes as it is. Owners and tags are what others wrote, and a shell runs what it is given."""


class KnownVm(msgspec.Struct, frozen=True):
    name: str
    ip: str
    state: str
    owners: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


class Known(msgspec.Struct):
    """What a node said, as far as it said it."""

    cloud: str = ""
    """Which cloud, and as whom."""
    vms: tuple[KnownVm, ...] = ()
    images: dict[str, str] = {}
    subnets: dict[str, str] = {}
    stores: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()


def known_to(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Known:
    """What the node that is meant knows; what it said a moment ago, where that is kept."""
    cloud = _cloud(options, environment)
    directory = cache_dir(environment)
    path = directory / _FILE if directory is not None else None
    kept = _read(path)
    if kept is not None and kept.cloud == cloud:
        return kept
    known = Known(cloud)
    asking = threading.Thread(target=_ask, args=(options, known), daemon=True)
    asking.start()
    asking.join(ASK_S)
    _keep(path, known)
    return known


def named(wanted: Next, known: Known) -> dict[str, str]:
    """The names that are asked for. Pure."""
    found = _named(wanted, known)
    return {name: text for name, text in found.items() if _PLAIN.fullmatch(name)}


def _named(wanted: Next, known: Known) -> dict[str, str]:
    match wanted.names:
        case Names.VM:
            return {vm.name: f"{vm.ip} {vm.state}" for vm in known.vms}
        case Names.VM_PATH:
            return {f"{vm.name}:": f"{vm.ip} {vm.state}" for vm in known.vms}
        case Names.IMAGE:
            return known.images
        case Names.SUBNET:
            return known.subnets
        case Names.VOLUME:
            return _plain(each for vm in known.vms if wanted.of_vm in (vm.name, vm.ip) for each in vm.volumes)
        case Names.STORE:
            return _plain(known.stores)
        case Names.KIND:
            return _plain(known.kinds)
        case Names.OWNER:
            return _plain(owner for vm in known.vms for owner in vm.owners)
        case Names.TAG:
            return _plain(tag for vm in known.vms for tag in vm.tags)
        case Names.SHARE:
            return _plain(known.shares)
        case Names.SHARE_PLACE:
            return _plain(f"{name}:" for name in known.shares)
        case Names.REMOTE | None:  # the command's own matter
            return {}


def _plain(names: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(sorted(set(names)), "")


def _cloud(options: argparse.Namespace, environment: Mapping[str, str]) -> str:
    settings = {name: environment.get(f"ATOLL_{name.upper()}") for name in vars(options)}
    told = {name: given or settings[name] for name, given in vars(options).items()}
    return " ".join(f"{name}={value}" for name, value in sorted(told.items()) if value)


def _ask(options: argparse.Namespace, known: Known) -> None:
    from atoll.api import hypervisor as api
    from atoll.api.shares import SHARE_LIST
    from atoll.cli.context import current_tls, find

    with contextlib.suppress(AtollError, OSError, ValueError):
        from atoll.api.client import Client

        context = find(options)
        with Client(context.addresses, current_tls(context)) as client:
            # Whoever may not ask for one of them may be allowed to ask for the others.
            with contextlib.suppress(AtollError):
                known.vms = tuple(
                    KnownVm(
                        vm.name,
                        vm.ip,
                        str(vm.state),
                        vm.owner_users,
                        tuple(f"{key}={value}" for key, value in vm.tags.items()),
                        tuple(volume.name for volume in vm.volumes),
                    )
                    for vm in client.call(api.VM_LIST)
                )
            with contextlib.suppress(AtollError):
                known.images = {image.name: image.description for image in client.call(api.IMAGE_LIST)}
            with contextlib.suppress(AtollError):
                node = client.call(api.NODE_SHOW)
                known.subnets = {pool.subnet.id: pool.subnet.cidr for pool in node.pools}
                known.stores = tuple(store.name for store in node.stores)
                known.kinds = tuple(driver.name for driver in node.drivers)
            with contextlib.suppress(AtollError):
                known.shares = tuple(share.name for share in client.call(SHARE_LIST))


def _read(path: Path | None) -> Known | None:
    """What is kept, unless it is too old."""
    try:
        if path is None or not 0 <= time.time() - path.stat().st_mtime < CACHE_S:
            return None
        return msgspec.json.decode(path.read_bytes(), type=Known)
    except (OSError, msgspec.MsgspecError):
        return None


def _keep(path: Path | None, known: Known) -> None:
    """Also that nobody answered: the next key should not wait for it again."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(known))
        fresh.replace(path)
