"""A Debian with systemd as a VM of kind lxc: booted, looked into, shut down by itself."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.host.conftest import CACHE, new_cloud, wait_until

from atoll.images.store import ImageStore
from atoll.model.image import DirectBoot
from atoll.system import cgroups, processes

if TYPE_CHECKING:
    from tests.host.conftest import Cli

SUITE = "bookworm"
BUILD = (
    "mmdebstrap", "--mode=root", "--variant=minbase", '--aptopt=APT::Install-Recommends "false"',
    "--include=systemd-sysv,dbus",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale")),
    # Its name is its VM's.
    '--customize-hook=rm -f "$1"/etc/hostname "$1"/etc/resolv.conf',
)  # fmt: skip

pytestmark = pytest.mark.timeout(600)  # the root is built once, and kept


def apt_sources() -> list[Path]:
    """Where this host has its Debian packages from."""
    apt = Path("/etc/apt")
    found = [apt / "sources.list", *apt.glob("sources.list.d/debian*.sources")]
    return [path for path in found if path.exists() and path.stat().st_size]


@pytest.fixture(scope="session")
def debian_root() -> Path:
    """The root file system as a tar archive, made once for what it is made of."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("there is no mmdebstrap: apt-get install mmdebstrap")
    sources = apt_sources()
    inputs = "\0".join([*BUILD, SUITE, *(path.read_text() for path in sources)])
    cache = Path(CACHE) / "debian-roots"
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / f"{hashlib.sha256(inputs.encode()).hexdigest()[:16]}.tar"
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            making = root.with_suffix(".making.tar")
            subprocess.run([*BUILD, SUITE, str(making), *map(str, sources)], check=True, capture_output=True)
            making.rename(root)
    return root


@pytest.fixture(scope="module")
def debian_cloud(images: Path, debian_root: Path) -> Iterator[Cli]:
    """A cloud that has it as an image."""
    with new_cloud(images) as cloud:
        blank = cloud.directory / "blank"
        blank.write_bytes(b"x")
        ImageStore(cloud.directory / "images").add(
            "debian",
            kinds=("lxc",),
            boot=DirectBoot("kernel", "initrd"),
            files={"kernel": blank, "initrd": blank, "root.tar": debian_root},
            rootfs="root.tar",
        )
        cloud("up")
        yield cloud


@pytest.fixture(scope="module")
def debian(debian_cloud: Cli) -> dict[str, Any]:
    """A VM of it whose systemd says that it runs."""
    wanted = ("--name", "deb", "--image", "debian", "--driver", "lxc", "--memory", "256MiB")
    vm: dict[str, Any] = debian_cloud.json("vm", "create", *wanted)
    said: list[str] = []

    def is_up() -> bool:
        said[:] = inside(debian_cloud, vm["ip"], "systemctl", "is-system-running").stdout.split()
        return said in (["running"], ["degraded"])

    wait_until(is_up, lambda: f"systemd says {said}: {debian_cloud('vm', 'log', 'deb').stdout}")
    return vm


def init_of(cloud: Cli, ip: str) -> int:
    """The container's systemd: the first process of its namespace. What that forks has its name for a moment too."""
    for pid in processes.processes_in(f"{cloud.group(ip, 'lxc')}/container"):
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            if status.partition("NSpid:")[2].partition("\n")[0].endswith("\t1"):
                assert status.startswith("Name:\tsystemd\n")
                return pid
    raise AssertionError(f"there is no init at {ip}")


def inside(cloud: Cli, ip: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in the container, as its root."""
    enter = ("nsenter", f"--target={init_of(cloud, ip)}", "--all", "--")
    return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=30)


def test_systemd_comes_up_whole_and_without_any_right_on_the_host(
    debian_cloud: Cli, debian: dict[str, Any]
) -> None:
    failed = inside(debian_cloud, debian["ip"], "systemctl", "--failed", "--plain", "--no-legend").stdout
    assert failed == ""
    assert inside(debian_cloud, debian["ip"], "systemctl", "is-system-running").stdout == "running\n"
    assert inside(debian_cloud, debian["ip"], "hostname").stdout == "deb\n"
    assert Path(f"/proc/{init_of(debian_cloud, debian['ip'])}").stat().st_uid >= 65_536


def test_its_units_are_in_groups_of_their_own_below_those_of_the_vm(
    debian_cloud: Cli, debian: dict[str, Any]
) -> None:
    shown = inside(
        debian_cloud, debian["ip"], "systemctl", "show", "--property=MainPID", "dbus.service"
    ).stdout
    assert int(shown.strip().removeprefix("MainPID=")) > 1
    groups = {
        line.partition("::")[2] or line.split(":", 2)[2]
        for pid in processes.processes_in(f"{debian_cloud.group(debian['ip'], 'lxc')}/container")
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    }
    below = f"/{debian_cloud.group(debian['ip'], 'lxc')}/container"
    assert f"{below}/system.slice/dbus.service" in groups


def test_a_command_runs_in_it_and_reaches_its_systemd(debian_cloud: Cli, debian: dict[str, Any]) -> None:
    words = ("--", "systemctl", "is-system-running")
    assert debian_cloud("vm", "exec", "deb", *words).stdout == "running\n"
    assert debian_cloud("vm", "exec", "deb", "--user", "nobody", "--", "id", "-un").stdout == "nobody\n"
    done = debian_cloud("vm", "exec", "deb", "-t", "--", "tty")
    assert done.stdout.startswith("/dev/pts/")


def test_its_journal_tells_of_the_boot(debian_cloud: Cli, debian: dict[str, Any]) -> None:
    journal = inside(debian_cloud, debian["ip"], "journalctl", "--boot", "--no-pager").stdout
    assert "Reached target multi-user.target" in journal
    assert "Startup finished in" in journal
    assert "deb systemd[1]:" in journal


def test_a_stop_shuts_it_down_by_itself_and_it_comes_up_again(
    debian_cloud: Cli, debian: dict[str, Any]
) -> None:
    inside(debian_cloud, debian["ip"], "sh", "-c", "echo kept >/root/file")
    stopped = debian_cloud.json("vm", "stop", "deb", "--grace", "30s")
    # Not by force: that would be the reason.
    assert (stopped["state"], stopped["reason"]) == ("stopped", "")
    assert "Reached target poweroff.target" in debian_cloud("vm", "log", "deb").stdout
    debian_cloud("vm", "start", "deb")
    wait_until(
        lambda: "kept" in inside(debian_cloud, debian["ip"], "cat", "/root/file").stdout,
        lambda: "its root is lost",
    )


def test_nothing_is_left_of_it(debian_cloud: Cli, debian: dict[str, Any]) -> None:
    group = debian_cloud.group(debian["ip"], "lxc")
    debian_cloud.destroy("deb")
    roots = {path.parent.parent for path in cgroups.join_paths("x")} | set(cgroups.other_hierarchies())
    assert [str(root / group) for root in roots if (root / group).exists()] == []
