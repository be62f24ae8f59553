"""What an agent is told when it starts. Pure values, read from one file: TOML, or JSON.

The docstrings below are what docs/configuration.md and the comments of a node's file say: `settings` reads them.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from atoll.api import reaching
from atoll.api.reaching import Address
from atoll.errors import AtollError, HostFailure, Invalid, Malformed
from atoll.identity.issuers import HttpsService
from atoll.identity.roles import LIFETIME, MAX_LIFETIME, RoleCallers
from atoll.model.checks import (
    LINK_PATTERN,
    check_ip,
    check_ip6,
    check_name,
    check_network,
    check_pattern,
    check_range,
)
from atoll.model.network import MAX_DNS
from atoll.model.node import Overcommit
from atoll.model.share import Share, check_host_path
from atoll.model.volume import MAX_VOLUME_MIB, MIN_ROOT_MIB
from atoll.plan.publishing import Rules
from atoll.plan.shares import ShareRules, check_configured
from atoll.serving.hooks.config import HookConfig, check_hooks
from atoll.serving.tls import Pki
from atoll.serving.user_limits import UserLimits
from atoll.system import ids

MAX_RESERVE_MIB = 1 << 30


class Roles(Struct, frozen=True, forbid_unknown_fields=True):
    """Who issues the credentials of VMs that have a role: the CA in a directory, or a service."""

    authority: Path | None = None
    """The directory of a CA on this machine. A signer process reads its key; the agent does not."""
    issuer: HttpsService | None = None
    """A service that issues instead: Keymaster, or what speaks like it."""
    broker: HttpsService | None = None
    """Who turns a role into credentials of a public cloud."""
    lifetime_s: int = int(LIFETIME.total_seconds())
    """How long the credentials of a role are good for, in seconds."""

    def __post_init__(self) -> None:
        if (self.authority is None) == (self.issuer is None):
            raise Invalid("roles", "authority and issuer", "one of them is needed, and only one")
        check_range("lifetime_s", self.lifetime_s, 1, int(MAX_LIFETIME.total_seconds()), "seconds")


class Dns(Struct, frozen=True, forbid_unknown_fields=True):
    """How guests' questions about names that are not the node's own are answered."""

    forward: bool = False
    """Whether they are asked elsewhere. Guests reach nothing through that but answers."""
    servers: Annotated[tuple[str, ...], Meta(max_length=MAX_DNS)] = ()
    """Whom to ask; none: those that the host asks, as its /etc/resolv.conf says."""

    def __post_init__(self) -> None:
        for server in self.servers:
            (check_ip6 if ":" in server else check_ip)("dns server", server)


class Uplink(Struct, frozen=True, forbid_unknown_fields=True):
    """How the host reaches a node that lives in a namespace of its own: the agent keeps routes to its subnets there."""

    link: str
    """The host's link that leads to the node."""
    ip6: str | None = None
    """The node's IPv6 address there, if it has one."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a node."""

    name: str
    """The node's name, as users see it."""
    ip: str
    """The node's own address, which is its key."""
    state: Path
    """Everything of this node: records, sockets, logs, volumes."""
    images: Path
    """The images that VMs are made of."""
    pki: Pki
    cgroup: str
    """Root of the cgroups of this node's VMs, relative: `atoll/3fa2b1`."""
    namespace: str | None = None
    """The network namespace that the node lives in; none means the host's own."""
    service_prefix: str = "atoll"
    """Begins the names of the namespaces that hold DHCP and metadata servers."""
    listen: tuple[str, ...] = ("0.0.0.0",)
    """The addresses on which the API is served."""
    port: int = 6976
    """The port of the API."""
    listen_outside: tuple[str, ...] = ()
    """Addresses of the host around `namespace` on which the API is served too, with a port where it is another:
    `192.0.2.7:443`, `[2001:db8::7]`."""
    drivers: tuple[str, ...] = ("qemu",)
    """The kinds of machine that are offered: qemu, lxc, docker, sim."""
    container_engine: Path = Path("/run/docker.sock")
    """The socket of the engine that runs the VMs of kind `docker`."""
    probe_image: str = "appliance"
    """Its kernel is what accelerators are tried with."""
    operator_users: tuple[str, ...] = ()
    """Users who may do everything on this node."""
    operator_groups: tuple[str, ...] = ()
    """Groups of users who may."""
    memory_reserve_mib: int = 512
    """Memory that is kept for the host itself."""
    disk_reserve_mib: int = 512
    """Space that is kept free in every store, and where roots are kept: nothing of it is promised to VMs."""
    root_mib: int = 1024
    """How much a container may change of its image, unless its create says otherwise; in MiB."""
    templates: int = 8
    """How many templates are kept, from which VMs are forked; 0: every VM boots."""
    hot_pool: int = 0
    """How many copies of one template may run ahead of demand; 0: none."""
    audit_days: int = 90
    """How many days it is kept who did what; fewer only where that takes more than 512 MiB."""
    region: str = "atoll-1"
    """What tools made for public clouds are told when they ask where they are."""
    ids: Path = ids.DEFAULT
    """The register of user ids that all agents of this host share."""
    dns: Dns = Dns()
    hooks: tuple[HookConfig, ...] = ()
    """Who is told of VMs that come, change and go."""
    role_callers: RoleCallers = RoleCallers()
    """Which callers are VMs in a role, of this node or another, and which of them may create VMs here."""
    overcommit: Overcommit = Overcommit()
    """How many times what there is may be promised; disk never is. `atoll node change` goes before it."""
    stores: dict[str, Path] = {}
    """Directories for volumes, by name, each of them this node's alone; none: one of its own, called default."""
    bridges: dict[str, str] = {}
    """Bridges that the agent makes over physical ports: name = port. A subnet names the bridge that it is on."""
    guests_reach: tuple[str, ...] = ()
    """Networks that guests of all subnets that the node routes may open connections to, such as 0.0.0.0/0, beside
    what their subnets reach. Never the node itself."""
    publish: Rules = Rules()
    shares: tuple[Share, ...] = ()
    """Folders of the host that guests may have. Operators allow more by `atoll share allow`."""
    share_below: tuple[Path, ...] = (Path("/srv"),)
    """Directories below which operators may allow folders by a call; none: only what is in `shares`."""
    uplink: Uplink | None = None
    roles: Roles | None = None
    user_limits: UserLimits = UserLimits()

    def __post_init__(self) -> None:
        for key, check in CHECKS.items():
            check(key, getattr(self, key))
        if self.listen_outside and self.namespace is None:
            raise Invalid(
                "listen_outside",
                self.listen_outside,
                "is for a node that lives in a namespace of its own",
                hint="listen is what others need",
            )
        if self.roles is not None and self.roles.issuer is not None and not self.role_callers.users:
            raise Invalid(
                "role_callers.users",
                "",
                "is needed with roles.issuer, which calls roles as it likes",
                hint="name the users that are roles, such as svc-*: VMs in a role may not do all that people may",
            )


def _check_links(field: str, bridges: Mapping[str, str]) -> None:
    for bridge, port in bridges.items():
        for link in (bridge, port):
            check_pattern(field, link, LINK_PATTERN, "link names of at most 15 characters")
    if len({*bridges, *bridges.values()}) != 2 * len(bridges):
        raise Invalid(field, dict(bridges), "each link can be one bridge, or the port of one bridge")


def _check_names(field: str, named: Mapping[str, object]) -> None:
    for name in named:
        check_name(field, name)


def _check_networks(field: str, networks: tuple[str, ...]) -> None:
    for network in networks:
        check_network(field, network)


def _check_addresses(field: str, addresses: tuple[str, ...]) -> None:
    if not addresses:
        raise Invalid(field, addresses, "must name one address at least", hint='["0.0.0.0"] is all of them')
    for address in addresses:
        check_ip(field, address)


def outside_addresses(texts: tuple[str, ...], port: int = 6976) -> tuple[Address, ...]:
    """What `listen_outside` says; `port` is that of the API."""
    addresses = tuple(reaching.parse("listen_outside", text, port) for text in texts)
    for host, _ in addresses:
        (check_ip6 if ":" in host else check_ip)("listen_outside", host)
    return addresses


CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    "name": check_name,
    "ip": check_ip,
    "listen": _check_addresses,
    "port": lambda key, value: check_range(key, value, 1, 65535),
    "listen_outside": lambda key, value: outside_addresses(value),
    "memory_reserve_mib": lambda key, value: check_range(key, value, 0, MAX_RESERVE_MIB, "MiB"),
    "disk_reserve_mib": lambda key, value: check_range(key, value, 0, MAX_RESERVE_MIB, "MiB"),
    "root_mib": lambda key, value: check_range(key, value, MIN_ROOT_MIB, MAX_VOLUME_MIB, "MiB"),
    "templates": lambda key, value: check_range(key, value, 0, 1000),
    "audit_days": lambda key, value: check_range(key, value, 1, 36500, "days"),
    "hot_pool": lambda key, value: check_range(key, value, 0, 1000),
    "stores": _check_names,
    "bridges": _check_links,
    "guests_reach": _check_networks,
    "hooks": lambda key, value: check_hooks(value),
    "shares": lambda key, value: check_configured(key, value),
    "share_below": lambda key, value: [check_host_path(key, str(path)) for path in value],
}
"""What settings must be besides their type, each by itself."""


def share_rules(config: Config) -> ShareRules:
    """What it says of shares; what the node keeps is never shared."""
    keys = (
        config.pki.key.parent,
        *((config.roles.authority,) if config.roles and config.roles.authority else ()),
    )
    own = (config.state, config.images, config.ids, *keys, *config.stores.values())
    return ShareRules(
        config.shares,
        tuple(map(str, config.share_below)),
        tuple(sorted({str(path) for path in own})),
    )


class Problem(Struct, frozen=True):
    """One thing that is wrong with a configuration."""

    key: str
    why: str
    hint: str = ""


def load(path: Path) -> Config:
    """The configuration in a file."""
    settings = read(path)
    if found := problems(settings):
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Malformed(
            f"the configuration {path}: {first.key}: {first.why}{more}",
            hint=first.hint or f"see them all with: atoll node check-config {path}",
        )
    return msgspec.convert(settings, Config, dec_hook=_decode)


def read(path: Path) -> dict[str, Any]:
    """What a file says, as far as it is TOML, or JSON where its name does not end with .toml."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise HostFailure(f"reading the configuration {path}: {error.strerror}") from None
    try:
        settings = tomllib.loads(text.decode()) if path.suffix == ".toml" else msgspec.json.decode(text)
    except (tomllib.TOMLDecodeError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = str(error)
        raise Malformed(f"the configuration {path}: {why[:1].lower()}{why[1:]}") from None
    if not isinstance(settings, dict):
        raise Malformed(f"the configuration {path}: must be a table of settings")
    return settings


def problems(settings: Mapping[str, Any]) -> list[Problem]:
    """All that is wrong with these settings, in the order of the file; then what is missing. Pure."""
    fields = {field.name: field for field in structs.fields(Config)}
    found = [
        problem
        for key, value in settings.items()
        for problem in (_wrong(key, value, fields[key].type) if key in fields else _unknown(key, fields))
    ]
    missing = [field.name for field in fields.values() if field.required and field.name not in settings]
    return [*found, *(Problem(key, "is missing", "every node needs it") for key in missing)]


def _unknown(key: str, known: Mapping[str, object]) -> list[Problem]:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "docs/configuration.md lists all settings"
    return [Problem(key, "there is no such setting", hint)]


def _wrong(key: str, value: Any, kind: Any) -> list[Problem]:
    try:
        converted = msgspec.convert(value, kind, dec_hook=_decode)
        if key in CHECKS:
            CHECKS[key](key, converted)
    except Invalid as error:
        return [Problem(key, f"{error.details['value']}: {error.details['why']}", error.hint)]
    except AtollError as error:
        return [Problem(key, error.brief, error.hint)]
    except msgspec.ValidationError as error:
        return [_mistyped(key, str(error))]
    return []


def _mistyped(key: str, said: str) -> Problem:
    """What msgspec said, with the place as a key: `Expected `int`, got `str` - at `$.cpus``."""
    why, _, place = said.partition(" - at ")
    where = re.sub(r"^\$\.?|\.?\[\.\.\.\]", "", place.strip("`"))
    why = why.replace("Object contains unknown field", "there is no such setting:")
    return Problem(f"{key}.{where}" if where else key, f"{why[:1].lower()}{why[1:]}".replace("`", ""))


def _decode(kind: type, value: object) -> object:
    if kind is not Path:
        raise ValueError(f"expected {kind.__name__}")
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError(f"must be an absolute path, not {value!r}")
    return Path(value)
