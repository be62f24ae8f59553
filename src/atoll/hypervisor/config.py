"""What an agent is told when it starts. Pure value, read from one JSON file."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.errors import HostFailure, Malformed
from atoll.model.checks import check_ip, check_name


class Pki(Struct, frozen=True):
    """Files: the CA that callers must be of, its revocation list, and our own certificate."""

    ca: Path
    crl: Path
    certificate: Path
    key: Path


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
    probe_image: str = "appliance"
    """Its kernel is what accelerators are tried with."""
    operator_users: tuple[str, ...] = ()
    operator_groups: tuple[str, ...] = ()
    memory_reserve_mib: int = 512
    disk_reserve_mib: int = 512

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_ip("ip", self.ip)


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
