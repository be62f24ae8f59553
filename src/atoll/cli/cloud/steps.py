"""Bringing a one-node cloud up and taking it down, step by step. Effects: all of this machine's side of it.

Every step may be repeated: `up` on a cloud that is up changes nothing; after a crash it mends what is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import msgspec
from msgspec import structs

from atoll.api.client import Client
from atoll.api.hypervisor import NODE_ADD_ADDRESS, NODE_ADD_SUBNET, NODE_SHOW, PORT, AddAddress
from atoll.cli.cloud import agent, keeper, kinds, stores, wires
from atoll.cli.cloud.layout import Cloud, Paths, plan, pool_for
from atoll.errors import Conflict, Denied, HostFailure, Unreachable
from atoll.identity import store, tls
from atoll.identity.authority import Authority
from atoll.identity.claims import server_claims, user_claims
from atoll.images import appliance
from atoll.images.store import ImageStore
from atoll.model.network import METADATA_IP
from atoll.serving.hooks import config as hooks_config
from atoll.system import cgroups, clock, files, host
from atoll.system.directory_lock import mutex
from atoll.system.ids import Register
from atoll.system.links import Links
from atoll.system.owners import find_owner

ADMIN = "admin"
ADMIN_LIFETIME = timedelta(days=7)
SERVER_LIFETIME = timedelta(days=30)
UP_LOCK = Path("/run/atoll-up.lock")
"""Held while a new cloud chooses addresses that nobody on this host uses."""
MAX_HOOKS = 1 << 16
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "nft": "nftables", "setpriv": "util-linux"}

Say = Callable[[str], None]


def up(
    paths: Paths,
    *,
    subnet: str | None,
    nat: bool | None,
    say: Say,
    ipv6: bool | None = None,
    agent_settings: Mapping[str, int] | None = None,
    hooks: Path | None = None,
) -> Cloud:
    """A cloud that serves: made if there is none, mended if it is not whole.

    Settings of the agent are kept; where they or the kinds of machine that this host has change, it is started
    anew, and VMs run on.
    """
    check_host("atoll up")
    _check_no_node(paths)
    hooks_file = _read_hooks(hooks) if hooks is not None else None
    # Others pass through to files that are theirs, and see nothing on the way.
    files.make_dirs(paths.directory, 0o711)
    with files.exclusive(paths.lock):
        cloud = _identify(paths, subnet, nat, ipv6)
        settled = structs.replace(cloud, **(agent_settings or {}))
        if settled != cloud:
            cloud = settled
            files.write_durably(paths.cloud, msgspec.json.encode(cloud))
        if hooks_file is not None:
            files.write_durably(paths.hooks, hooks_file)
        say(f"network {cloud.subnet.cidr} in namespace {cloud.namespace}")
        authority = _credentials(cloud, paths)
        say("certificates")
        image = appliance.build(ImageStore(paths.images), cache_of(paths), lambda text: say(f"image: {text}"))
        say(f"image {image.name} {image.digest[:12]}")
        drivers, engine = kinds.offered()
        if agent.write_config(cloud, paths, ADMIN, drivers, engine) or agent.running(paths) is None:
            _stop(paths)
        pid = agent.running(paths) or agent.start(paths)
        agent.wait_until_serving(paths, pid, (cloud.node_ip, PORT))
        keeper.ensure(paths)
        say(f"agent {pid.pid} serves on {cloud.node_ip}:{PORT}")
        _context(cloud, paths, authority)
        _give_addresses(cloud, paths)
    return cloud


def _read_hooks(path: Path) -> bytes:
    """The content of a file of hooks, once it is known to be one."""
    try:
        content = files.read_limited(path, MAX_HOOKS)
    except OSError as error:
        raise HostFailure(f"reading hooks in {path}: {error.strerror}") from None
    hooks_config.parse(content, str(path))
    return content


def check_root(command: str) -> None:
    if os.geteuid() != 0:
        raise Denied(
            f"{command}: namespaces, links and cgroups are for root alone", hint=f"use: sudo {command}"
        )


def check_host(command: str) -> None:
    """What cannot be mended on the way is said before anything is touched."""
    check_root(command)
    missing = [package for tool, package in TOOLS.items() if host.find_tool(tool) is None]
    if missing:
        raise HostFailure(
            f"{command}: tools are missing on this host: {', '.join(missing)}",
            hint=f"apt-get install {' '.join(missing)}; see: atoll doctor",
        )


def cache_of(paths: Paths) -> Path:
    """Downloads; shared between clouds where ATOLL_CACHE says so."""
    return Path(os.environ.get("ATOLL_CACHE") or paths.cache)


def _check_no_node(paths: Paths) -> None:
    if paths.installed.exists():
        raise Conflict(
            f"{paths.directory} is the directory of an installed node",
            hint="a cloud can be in another one: --dir DIR; the node is removed with: atoll node uninstall",
        )


def load(paths: Paths) -> Cloud:
    _check_no_node(paths)
    try:
        return msgspec.json.decode(paths.cloud.read_bytes(), type=Cloud)
    except FileNotFoundError:
        raise Unreachable(f"no cloud in {paths.directory}", hint="start one with: atoll up") from None
    except PermissionError:
        raise Denied(
            f"reading {paths.cloud}: permission denied", hint="it belongs to root: use sudo"
        ) from None
    except msgspec.MsgspecError as error:
        raise HostFailure(f"reading {paths.cloud}: {error}", hint="restore the file from a backup") from None


def _identify(paths: Paths, subnet: str | None, nat: bool | None, ipv6: bool | None) -> Cloud:
    with mutex(UP_LOCK):
        if paths.cloud.exists():
            cloud = load(paths)
            if subnet is not None and subnet != cloud.subnet.cidr:
                raise Conflict(
                    f"the cloud in {paths.directory} has subnet {cloud.subnet.cidr}, not {subnet}",
                    hint="add one with: atoll node add-subnet, or use another directory",
                )
            if ipv6 is not None and ipv6 != (cloud.subnet.cidr6 is not None):
                raise Conflict(
                    f"the cloud in {paths.directory} was made {'without' if ipv6 else 'with'} IPv6",
                    hint="add a subnet with: atoll node add-subnet --cidr6, or use another directory",
                )
        else:
            with Links() as here:
                taken, links = [route.cidr for route in here.routes()], here.names()
            cloud = plan(secrets.token_hex(3), subnet, taken, links, nat=False, ipv6=bool(ipv6))
        if nat is not None:
            cloud = structs.replace(cloud, nat=nat)
        files.write_durably(paths.cloud, msgspec.json.encode(cloud))
        wires.ensure(cloud)
    # Also where it was off before: whoever switched it off may have been killed on the way.
    (wires.ensure_nat if cloud.nat else wires.remove_nat)(cloud)
    return cloud


def _credentials(cloud: Cloud, paths: Paths) -> Authority:
    authority = Authority.ensure(paths.pki, f"Atoll CA {cloud.id}")
    names = (cloud.subnet.gateway, cloud.node_ip, METADATA_IP, "127.0.0.1", "localhost", agent.node_name())
    now = clock.now()
    store.ensure(store.server_credential(paths.server), authority, server_claims(names), SERVER_LIFETIME, now)
    return authority


def _context(cloud: Cloud, paths: Paths, authority: Authority) -> None:
    """What `atoll` needs to find the cloud and to be its administrator."""
    claims = user_claims(ADMIN)
    store.ensure(store.client_credential(paths.client), authority, claims, ADMIN_LIFETIME, clock.now())
    context = {"addresses": [f"{cloud.node_ip}:{PORT}"], "namespace": cloud.namespace}
    files.write_durably(paths.context, msgspec.json.encode(context))


def _give_addresses(cloud: Cloud, paths: Paths) -> None:
    with connect(cloud, paths) as client:
        known = {pool.subnet.id for pool in client.call(NODE_SHOW).pools}
        if cloud.subnet.id not in known:
            client.call(NODE_ADD_SUBNET, body=cloud.subnet)
            addresses = AddAddress(cloud.subnet.id, pool_for(cloud.subnet))
            client.call(NODE_ADD_ADDRESS, body=addresses)


def connect(cloud: Cloud, paths: Paths) -> Client:
    credential = store.client_credential(paths.client)
    context = tls.client_context(credential.ca, credential.cert, credential.key)
    return Client([(cloud.node_ip, PORT)], context)


def _stop(paths: Paths) -> bool:
    """End the agent for good: its keeper first. Whether there was one."""
    keeper.stop(paths)
    return agent.stop(paths)


def down(paths: Paths) -> bool:
    """Stop the services; VMs run on. Whether there was anything to stop."""
    cloud = load(paths)
    with files.exclusive(paths.lock):
        stopped = _stop(paths)
        wires.remove_nat(cloud)
        return stopped


def destroy(paths: Paths) -> None:
    """Leave nothing: asks no agent, so it works however broken the cloud is."""
    cloud = load(paths)
    with files.exclusive(paths.lock):
        _stop(paths)
        kinds.remove_leftovers(agent.told(paths), cloud.cgroup)
        cgroups.kill_all(cloud.cgroup)
        cgroups.remove(cloud.cgroup)
        cgroups.remove_if_empty(str(Path(cloud.cgroup).parent))
        wires.remove_nat(cloud)
        wires.remove(cloud)
        owner = find_owner(paths.node)
        vms = [path.name for path in (paths.node / "vms").glob("*")]
        # From the last to the first, each of them whatever becomes of the others: a file that cannot be removed is
        # told of, and is all that is left.
        with contextlib.ExitStack() as always:
            if owner is not None:
                # Nothing runs as these users any more, and nothing is theirs.
                always.callback(Register(agent.ids_register(), owner).give_back_all)
            always.callback(files.remove_tree, paths.directory)
            always.callback(stores.remove_volumes, agent.told(paths), owner, vms)
