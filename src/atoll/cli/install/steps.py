"""Installing a node on this machine, step by step. Effects: all of this machine's side of it.

Every step may be repeated: `install` on a node that is installed changes what differs, and nothing else.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from atoll import __version__
from atoll.api.client import Client
from atoll.api.hypervisor import NODE_ADD_ADDRESS, NODE_ADD_SUBNET, NODE_SHOW, PORT, AddAddress
from atoll.cli.cloud import agent, kinds, settings
from atoll.cli.cloud.layout import Paths
from atoll.cli.cloud.steps import ADMIN, ADMIN_LIFETIME, cache_of, check_host, check_records
from atoll.cli.install import configuration, removal, supervision, unit
from atoll.cli.install.record import UNIT, Installed, load, paths_of
from atoll.cli.install.wish import Wish, check_host_has, check_ip_is_here, own_address
from atoll.errors import AtollError, Conflict, Invalid, Malformed, NotFound
from atoll.identity import store, tls
from atoll.identity.authority import Authority
from atoll.identity.claims import server_claims, user_claims
from atoll.identity.ssh_signing import ensure_trust
from atoll.images import appliance
from atoll.images.store import ImageStore
from atoll.model.network import METADATA_IP
from atoll.system import clock, files, steps
from atoll.system.links import read_sysctl
from atoll.system.uplinks import Uplinks

SERVER_LIFETIME = timedelta(days=90)
SWITCHES = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
"""Kernel parameters that the agent changes where the node is the router of a subnet."""

Say = Callable[[str], None]


class Plan(Struct, frozen=True):
    """What an installation would do."""

    node: Installed
    is_new: bool
    config: str
    """The text of the configuration file."""
    unit: str
    words: tuple[str, ...]
    """All of it, step by step."""

    @property
    def settings(self) -> dict[str, Any]:
        return configuration.parsed(self.config)

    @property
    def address(self) -> tuple[str, int]:
        return str(self.settings["ip"]), int(self.settings.get("port", PORT))

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{__version__}\0{self.config}\0{self.unit}".encode()).hexdigest()


def plan(directory: Path, wish: Wish) -> Plan:
    """Look at this host and refuse what cannot work; nothing is changed."""
    check_host("atoll node install")
    if Paths(directory).cloud.exists():
        raise Conflict(
            f"{directory} holds a cloud that atoll up made",
            hint="use another directory: --dir DIR; or remove the cloud: atoll down --destroy",
        )
    check_records(Paths(directory))
    with Uplinks() as links:
        check_host_has(wish, links)
        try:
            node, is_new = load(directory), False
        except NotFound:
            node, is_new = _new(), True
        config_path = Path(node.config)
        if config_path.exists():
            text = _changed(config_path, wish)
        else:
            text = configuration.written(_values(paths_of(directory, node), node, wish, links))
        # In the file already or not: it must be right now, before anything of ours is touched.
        settings.check(msgspec.json.encode(configuration.parsed(text)), config_path)
        check_ip_is_here(configuration.parsed(text)["ip"], links)
        ports = {
            port: links.check_port(port, bridge).up
            for bridge, port in configuration.parsed(text).get("bridges", {}).items()
        }
    node = structs.replace(
        node,
        config_is_ours=node.config_is_ours and (not is_new or not config_path.exists()),
        ports={**ports, **node.ports},
        switches=node.switches or {key: read_sysctl(key) for key in SWITCHES},
        made=node.made or _missing_parents(config_path, UNIT),
    )
    unit_text = unit.text(Path(sys.executable), config_path)
    return Plan(node, is_new, text, unit_text, _words(directory, config_path, text, unit_text, wish))


def install(directory: Path, wish: Wish, say: Say) -> Plan:
    """A node that serves: made if there is none, brought up to date if there is one."""
    planned = plan(directory, wish)
    paths = paths_of(directory, planned.node)
    files.make_dirs(directory, 0o711)
    with files.exclusive(paths.lock):
        if paths.installed.exists() == planned.is_new:
            raise Conflict(f"{directory}: somebody else installs or removes a node", hint="try again")
        try:
            # First of all, so that whatever comes of this can be found and removed.
            files.write_durably(paths.installed, msgspec.json.encode(planned.node))
            steps.step("install.recorded")
            _install(paths, planned, wish, say)
        except BaseException as error:
            if planned.is_new:
                say("it failed: removing what was made")
                removal.remove(directory, planned.node)
                raise _without_log(error) from None
            raise
    return planned


def _install(paths: Paths, planned: Plan, wish: Wish, say: Say) -> None:
    node = planned.node
    supervised = supervision.of_this_machine(paths)
    if planned.is_new:
        _check_port_is_free(planned.address)
    authority = None
    if wish.certificates is None and "authority" in planned.settings.get("roles", {}):
        authority = _credentials(paths, planned)
        steps.step("install.certified")
        say("certificates")
    image = appliance.build(ImageStore(paths.images), cache_of(paths), lambda text: say(f"image: {text}"))
    say(f"image {image.name} {image.digest[:12]}")
    _write(Path(node.config), planned.config, 0o600)
    _write(UNIT, planned.unit, 0o644)
    steps.step("install.configured")
    say(f"configuration {node.config}")
    if node.applied != planned.digest or not supervised.running():
        supervised.start(planned.address)
        steps.step("install.started")
        files.write_durably(
            paths.installed, msgspec.json.encode(structs.replace(node, applied=planned.digest))
        )
    say(f"agent serves on {planned.address[0]}:{planned.address[1]}, kept running by {supervised.name}")
    if authority is not None:
        _write_context(paths, planned, authority)
    if wish.subnet is not None:
        _give(paths, planned, wish)
        steps.step("install.given")
        say(f"subnet {wish.subnet.cidr}")


def _new() -> Installed:
    return Installed(id=secrets.token_hex(3))


def _values(paths: Paths, node: Installed, wish: Wish, links: Uplinks) -> dict[str, Any]:
    """The settings of a new node."""
    ip = wish.ip or own_address(links)
    if ip is None:
        raise Invalid(
            "ip",
            "",
            "this host has no default route that would tell its address",
            hint="say it: --ip ADDRESS",
        )
    drivers, engine = kinds.offered()
    values: dict[str, Any] = {
        "name": wish.name or agent.node_name(),
        "ip": ip,
        "state": str(paths.node),
        "images": str(paths.images),
        "cgroup": node.cgroup,
        "service_prefix": node.service_prefix,
        "drivers": drivers,
        "operator_users": wish.operators or (ADMIN,),
        "bridges": wish.bridges,
    }
    if engine is not None:
        values["container_engine"] = str(engine)
    if wish.certificates is None:
        return {**values, "pki": agent.pki_of(paths), "roles": {"authority": str(paths.pki)}}
    files_of = wish.certificates
    given = {"ca": files_of.ca, "certificate": files_of.certificate, "key": files_of.key}
    pki = {name: str(path) for name, path in given.items()} | {"crls": [str(files_of.crl)]}
    return {**values, "pki": pki}


def _changed(path: Path, wish: Wish) -> str:
    """What the file of a node that is there says, with what is wished for."""
    settings.read(path)  # says so where it is no TOML
    if wish.certificates is not None or wish.operators:
        raise Malformed(
            f"{path}: certificates and operators are set there", hint="change them there, under [pki]"
        )
    plain = {key: value for key, value in (("name", wish.name), ("ip", wish.ip)) if value is not None}
    return configuration.changed(path.read_text("utf-8"), path, plain, wish.bridges)


def _words(directory: Path, config: Path, text: str, unit_text: str, wish: Wish) -> tuple[str, ...]:
    values = configuration.parsed(text)
    words = [f"make or renew what is in {directory}: certificates, images, the node's state"]
    for path, content in ((config, text), (UNIT, unit_text)):
        words.append(f"{path}: {'as it is' if _read(path) == content else 'write it'}")
    words += [f"make bridge {bridge} over {port}" for bridge, port in values.get("bridges", {}).items()]
    words.append(f"start the agent on {values['ip']}:{values.get('port', PORT)}, where it is not up to date")
    if wish.subnet is not None:
        where = f" on bridge {wish.subnet.bridge}" if wish.subnet.bridge else ""
        words.append(f"give it subnet {wish.subnet.cidr}{where} with {len(wish.addresses)} addresses")
    return tuple(words)


def _check_port_is_free(address: tuple[str, int]) -> None:
    import socket

    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return
    raise Conflict(
        f"{address[0]}:{address[1]}: somebody listens there already",
        hint=f"see who: ss -ltnp sport = {address[1]}",
    )


def _credentials(paths: Paths, planned: Plan) -> Authority:
    authority = Authority.ensure(paths.pki, f"Atoll CA {planned.node.id}")
    names = (planned.address[0], METADATA_IP, "127.0.0.1", "localhost", str(planned.settings["name"]))
    credential = store.server_credential(paths.server)
    store.ensure(credential, authority, server_claims(names), SERVER_LIFETIME, clock.now())
    # Now, so that the agent need not start a signer for it when it starts.
    ensure_trust(authority.directory)
    return authority


def _write_context(paths: Paths, planned: Plan, authority: Authority) -> None:
    """What `atoll` needs to find the node and to be its administrator."""
    credential = store.client_credential(paths.client)
    store.ensure(credential, authority, user_claims(ADMIN), ADMIN_LIFETIME, clock.now())
    host, port = planned.address
    files.write_durably(paths.context, msgspec.json.encode({"addresses": [f"{host}:{port}"]}))


def _give(paths: Paths, planned: Plan, wish: Wish) -> None:
    """The subnet and its addresses, as far as the node has them not already."""
    assert wish.subnet is not None
    credential = store.client_credential(paths.client)
    context = tls.client_context(credential.ca, credential.cert, credential.key)
    with Client([planned.address], context) as client:
        known = {pool.subnet.id: pool.subnet for pool in client.call(NODE_SHOW).pools}
        if wish.subnet.id not in known:
            client.call(NODE_ADD_SUBNET, body=wish.subnet)
            client.call(NODE_ADD_ADDRESS, body=AddAddress(wish.subnet.id, wish.addresses))
        elif known[wish.subnet.id] != wish.subnet:
            raise Conflict(
                f"the node has a subnet {wish.subnet.id} already, {known[wish.subnet.id].cidr}, which differs",
                hint="add another one with: atoll subnet add",
            )


def _write(path: Path, text: str, mode: int) -> None:
    if _read(path) != text:
        files.make_dirs(path.parent, 0o755)
        files.write_durably(path, text.encode(), mode)


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None


def _missing_parents(*paths: Path) -> tuple[str, ...]:
    """The directories above these that are not there, the deepest last."""
    missing = {parent for path in paths for parent in path.parents if not parent.exists()}
    return tuple(sorted(map(str, missing)))


def _without_log(error: BaseException) -> BaseException:
    """The error, without a hint at files that were just removed."""
    if isinstance(error, AtollError) and "agent.log" in error.hint:
        error.hint = "nothing was left behind; see: atoll doctor"
    return error
