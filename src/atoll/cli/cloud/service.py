"""The cloud of `atoll up` as a service of systemd. Effects: a unit file, and systemctl.

What the unit runs is `atoll up --foreground`; what it says is decided in atoll.cli.install.unit. Where systemd is
there but does not run (an image that is being made, a chroot), the unit waits for the next boot.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from atoll.errors import HostFailure
from atoll.system import files, host, processes

SYSTEMD = Path("/run/systemd/system")
"""There while systemd is process 1, and not otherwise: sd_booted(3)."""
UNITS = Path("/etc/systemd/system")
DEFAULT_DIR = Path("/var/lib/atoll")
TOLD = ("ATOLL_CACHE", "ATOLL_IDS", "DOCKER_HOST")
"""Variables that count when a cloud is brought up, and are not kept in its directory."""
START_TIMEOUT_S = 15 * 60
_BEYOND = "another service manager can keep this running: atoll up --foreground; see docs/service.md"


class Service(Struct, frozen=True):
    """The unit of one cloud, there or not."""

    name: str

    @property
    def path(self) -> Path:
        return UNITS / self.name

    @property
    def is_installed(self) -> bool:
        return self.path.exists()


def of(directory: Path, cloud_id: str) -> Service:
    """Pure. The cloud in the usual place has the plain name."""
    return Service("atoll.service" if directory == DEFAULT_DIR else f"atoll-{cloud_id}.service")


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the caller's environment the service is to have too. Pure."""
    return {name: environment[name] for name in TOLD if environment.get(name)}


def install(service: Service, text: str) -> bool:
    """Write the unit and have it started at every boot, and now where systemd runs. Whether it does."""
    if host.find_tool("systemctl") is None:
        raise HostFailure(f"installing {service.name}: this machine has no systemd", hint=_BEYOND)
    is_new = not service.is_installed or service.path.read_text("utf-8") != text
    if is_new:
        files.make_dirs(service.path.parent, 0o755)
        files.write_durably(service.path, text.encode(), 0o644)
    if not SYSTEMD.is_dir():
        systemctl("enable", "--quiet", service.name)
        return False
    systemctl("daemon-reload")
    systemctl("enable", "--quiet", service.name)
    systemctl("restart" if is_new else "start", service.name, timeout_s=START_TIMEOUT_S)
    return True


def uninstall(service: Service) -> bool:
    """End what it runs, and remove it; VMs run on. Whether there was one."""
    if not service.is_installed:
        return False
    if SYSTEMD.is_dir():
        processes.run_blocking(("systemctl", "stop", service.name), check=False, timeout_s=60)
    processes.run_blocking(("systemctl", "disable", "--quiet", service.name), check=False)
    service.path.unlink(missing_ok=True)
    if SYSTEMD.is_dir():
        systemctl("daemon-reload")
        processes.run_blocking(("systemctl", "reset-failed", service.name), check=False)
    return True


def starts_at_boot(service: Service) -> bool:
    done = processes.run_blocking(("systemctl", "is-enabled", service.name), check=False)
    return done.stdout.decode(errors="replace").strip() == "enabled"


def state_of(unit: str) -> str:
    """As systemd says: active, inactive, failed; or unknown."""
    done = processes.run_blocking(("systemctl", "is-active", unit), check=False)
    return done.stdout.decode(errors="replace").strip() or "unknown"


def systemctl(*words: str, timeout_s: float = 90) -> None:
    processes.run_blocking(("systemctl", *words), timeout_s=timeout_s)
