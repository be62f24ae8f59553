"""Bringing a one-node cloud up and taking it down, step by step. Effects: all of this machine's side of it.

Every step may be repeated: `up` on a cloud that is up changes nothing; after a crash it mends what is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
from msgspec import structs

from atoll import RECORD_FORMAT, __version__
from atoll.api.client import Client
from atoll.api.hypervisor import NODE_ADD_ADDRESS, NODE_ADD_SUBNET, NODE_SHOW, PORT, AddAddress
from atoll.cli.cloud import agent, keeper, kinds, listen, service, space, stores, wires
from atoll.cli.cloud.layout import Cloud, Paths, plan, pool_for
from atoll.errors import Conflict, Denied, HostFailure, Unreachable
from atoll.identity import store, tls
from atoll.identity.authority import Authority
from atoll.identity.claims import server_claims, user_claims
from atoll.identity.ssh_signing import ensure_trust
from atoll.images import appliance
from atoll.images.store import ImageStore
from atoll.model.network import METADATA_IP
from atoll.serving import formats
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
    listen_at: Sequence[str] | None = None,
    known_as: Sequence[str] | None = None,
    foreground: bool = False,
) -> Cloud:
    """A cloud that serves: made if there is none, mended if it is not whole.

    Settings of the agent are kept; where they or the kinds of machine that this host has change, it is started
    anew, and VMs run on. In the foreground, this process is noted as the keeper of the agent, and is to become it.
    """
    check_host("atoll up")
    _check_no_node(paths)
    check_records(paths)
    if foreground:
        _check_not_held(paths)
    space.check(paths, cache_of(paths))
    hooks_file = _read_hooks(hooks) if hooks is not None else None
    if listen_at is not None:
        listen.check_free(set(listen_at) - _served_at(paths))
    # Others pass through to files that are theirs, and see nothing on the way.
    files.make_dirs(paths.directory, 0o711)
    with files.exclusive(paths.lock):
        cloud = _identify(paths, subnet, nat, ipv6)
        settled = structs.replace(cloud, **(agent_settings or {}))
        if listen_at is not None:
            settled = structs.replace(settled, listen=tuple(listen_at))
        if known_as is not None:
            settled = structs.replace(settled, known_as=tuple(known_as))
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
        changed = agent.write_config(cloud, paths, ADMIN, drivers, engine)
        pid = _ensure_agent(paths, changed, foreground)
        agent.wait_until_serving(paths, pid, (cloud.node_ip, PORT), has_log=not foreground)
        (keeper.note_foreground if foreground else keeper.ensure)(paths)
        say(f"agent {pid.pid} serves on {cloud.node_ip}:{PORT}")
        for address in listen.not_served(cloud.listen, paths.server / "ca.pem"):
            say(
                f"warning: it is not served at {address} yet, which somebody else has, or nobody: see {paths.log}"
            )
        _context(cloud, paths, authority)
        _give_addresses(cloud, paths)
    free_mib = files.free_mib(paths.directory)
    if free_mib < space.FEW_MIB:
        say(f"{free_mib} MiB are free in {paths.directory}: that is little for VMs with disks")
    return cloud


def _ensure_agent(paths: Paths, changed: bool, foreground: bool) -> agent.Started:
    """An agent of this version that knows its configuration, whoever keeps it running."""
    found, held = agent.running(paths), keeper.running(paths)
    is_stale = changed or (found is not None and found.version != __version__)
    if foreground:
        if held is not None or is_stale:
            _stop(paths)
        return agent.running(paths) or agent.start(paths, sys.stderr.fileno())
    if held is not None and held.foreground:
        if is_stale:
            agent.stop(paths)
        return agent.wait_until_started(paths)
    if is_stale or found is None:
        _stop(paths)
    return agent.running(paths) or agent.start(paths)


def _check_not_held(paths: Paths) -> None:
    held = keeper.running(paths)
    if held is not None and held.foreground:
        raise Conflict(
            f"the cloud in {paths.directory} is up in the foreground already, as process {held.pid}",
            hint="it is enough to have one; stop that one with: atoll down",
        )


def check_records(paths: Paths) -> None:
    """Refuse to take over what only a later version can read, while whoever runs it still does."""
    for path in (paths.node / "node.json", *sorted((paths.node / "vms").glob("*/vm.json"))):
        try:
            needs = formats.needed(path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            continue  # what cannot be read at all is for the agent to tell of
        if needs > RECORD_FORMAT:
            raise Conflict(
                f"{path} was written by a later version of atoll: it needs format {needs},"
                f" and atoll {__version__} knows format {RECORD_FORMAT}; nothing was changed",
                hint="install that version again, or a later one; VMs run on meanwhile",
            )


def _served_at(paths: Paths) -> set[str]:
    """Addresses of the host that the agent of this cloud has now."""
    return set(agent.told(paths).get("listen_outside", ())) if agent.running(paths) else set()


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
                    hint="add one with: atoll subnet add, or use another directory",
                )
            if ipv6 is not None and ipv6 != (cloud.subnet.cidr6 is not None):
                raise Conflict(
                    f"the cloud in {paths.directory} was made {'without' if ipv6 else 'with'} IPv6",
                    hint="add a subnet with: atoll subnet add --cidr6, or use another directory",
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
    own = (cloud.subnet.gateway, cloud.node_ip, METADATA_IP, "127.0.0.1", "localhost", agent.node_name())
    names = (*own, *listen.names(cloud.listen, cloud.known_as))
    now = clock.now()
    store.ensure(store.server_credential(paths.server), authority, server_claims(names), SERVER_LIFETIME, now)
    # Now, so that the agent need not start a signer for it when it starts.
    ensure_trust(authority.directory)
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
    was_there = agent.running(paths) is not None
    keeper.stop(paths)  # one in the foreground ends the agent too
    agent.stop(paths)
    return was_there


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
    service.uninstall(service.of(paths.directory, cloud.id))
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
