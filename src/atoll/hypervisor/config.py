"""What an agent is told when it starts. Pure value, read from one JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from atoll.errors import HostFailure, Invalid, Malformed
from atoll.identity.issuers import HttpsService
from atoll.identity.roles import LIFETIME, MAX_LIFETIME, RoleCallers
from atoll.model.checks import check_ip, check_ip6, check_name, check_range
from atoll.model.network import MAX_DNS
from atoll.model.node import Overcommit
from atoll.serving.hooks.config import HookConfig, check_hooks
from atoll.serving.tls import Pki
from atoll.system import ids


class Roles(Struct, frozen=True, forbid_unknown_fields=True):
    """Who issues the credentials of VMs that have a role: the CA in a directory, or a service."""

    authority: Path | None = None
    """The directory of a CA on this machine. A signer process reads its key; the agent does not."""
    issuer: HttpsService | None = None
    broker: HttpsService | None = None
    """Who turns a role into credentials of a public cloud."""
    lifetime_s: int = int(LIFETIME.total_seconds())

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


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    ip: str
    """The node's own address, which is its key."""
    state: Path
    """Everything of this node: records, sockets, logs, volumes."""
    images: Path
    pki: Pki
    cgroup: str
    """Root of the cgroups of this node's VMs, relative: `atoll/3fa2b1`."""
    namespace: str | None = None
    """The network namespace that the node lives in; none means the host's own."""
    service_prefix: str = "atoll"
    """Begins the names of the namespaces that hold DHCP and metadata servers."""
    listen: tuple[str, ...] = ("0.0.0.0",)
    port: int = 6976
    drivers: tuple[str, ...] = ("qemu",)
    container_engine: Path = Path("/run/docker.sock")
    """The socket of the engine that runs the VMs of kind `docker`."""
    probe_image: str = "appliance"
    """Its kernel is what accelerators are tried with."""
    operator_users: tuple[str, ...] = ()
    operator_groups: tuple[str, ...] = ()
    memory_reserve_mib: int = 512
    disk_reserve_mib: int = 512
    ids: Path = ids.DEFAULT
    """The register of user ids that all agents of this host share."""
    stores: dict[str, Path] = {}
    """Directories for volumes, by name; none: one of its own, called default."""
    overcommit: Overcommit = Overcommit()
    templates: int = 8
    """How many templates are kept, from which VMs are forked; 0: every VM boots."""
    hot_pool: int = 0
    """How many copies of one template may run ahead of demand; 0: none."""
    roles: Roles | None = None
    """None: no VM here can have a role."""
    role_callers: RoleCallers = RoleCallers()
    """Which callers are VMs in a role, of this node or another, and which of them may create VMs here."""
    dns: Dns = Dns()
    hooks: tuple[HookConfig, ...] = ()
    """Who is told of VMs that come, change and go."""
    region: str = "atoll-1"
    """What tools made for public clouds are told when they ask where they are."""

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_ip("ip", self.ip)
        if self.roles is not None and self.roles.issuer is not None and not self.role_callers.users:
            raise Invalid(
                "role_callers.users",
                "",
                "is needed with roles.issuer, which calls roles as it likes",
                hint="name the users that are roles, such as svc-*: VMs in a role may not do all that people may",
            )
        for store in self.stores:
            check_name("store", store)
        check_hooks(self.hooks)
        check_range("templates", self.templates, 0, 1000)
        check_range("hot_pool", self.hot_pool, 0, 1000)


def load(path: Path) -> Config:
    """The configuration in a file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Config, dec_hook=_decode)
    except OSError as error:
        raise HostFailure(f"reading the agent's configuration {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise Malformed(f"the agent's configuration {path}: {error}") from None


def _decode(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"expected {kind.__name__}")
