"""What an installed node consists of outside of its directory, as it is remembered there. Pure but for reading it.

The record is written before anything that it names is made: however an installation ends, the next one goes on
from it, and `atoll node uninstall` finds everything.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from atoll.cli.cloud.layout import Paths
from atoll.errors import Denied, HostFailure, NotFound

CONFIG = Path("/etc/atoll/node.toml")
UNIT_NAME = "atoll-hypervisor.service"
UNIT = Path("/etc/systemd/system") / UNIT_NAME


class Installed(Struct, frozen=True):
    """One node on this machine."""

    id: str
    config: str = str(CONFIG)
    config_is_ours: bool = True
    """Whether we wrote it; one that was there before stays."""
    made: tuple[str, ...] = ()
    """Directories outside of the node's own that were not there before."""
    ports: dict[str, bool] = {}
    """Links that were made ports of bridges, and whether they were switched on before."""
    switches: dict[str, str] = {}
    """Kernel parameters as they were before."""
    applied: str = ""
    """The digest of what the running agent was started with."""

    @property
    def cgroup(self) -> str:
        return f"atoll/{self.id}"

    @property
    def service_prefix(self) -> str:
        return f"atoll-{self.id}"


def load(directory: Path) -> Installed:
    path = Paths(directory).installed
    try:
        return msgspec.json.decode(path.read_bytes(), type=Installed)
    except FileNotFoundError:
        raise NotFound(
            f"no node is installed in {directory}", hint="install one with: atoll node install"
        ) from None
    except PermissionError:
        raise Denied(f"reading {path}: permission denied", hint="it belongs to root: use sudo") from None
    except msgspec.MsgspecError as error:
        raise HostFailure(f"reading {path}: {error}", hint="restore the file from a backup") from None


def paths_of(directory: Path, node: Installed) -> Paths:
    return Paths(directory, Path(node.config))
