"""A peer of our LXC machines: LXD, where it is installed, with the guest of raw lxc-start.

    namespace ── br0: gateway, 169.254.169.254, DHCP ═══ container (unprivileged) ── lxd ── lxc launch

Lxd is the bench's own: it has its own directory and pool, and listens on nothing but its socket. Effects: an lxd,
its containers and control groups, all removed at the end.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from apart import apart
from raw_containers import BRIDGE, LXC_IP, RawContainers

from atoll.model.network import mac_for
from atoll.system import cgroups

IMAGE = "raw"
METADATA = b"architecture: x86_64\ncreation_date: 1\n"

# As LXC wants it, /sys is that of the network namespace.
MOUNTS = """
mkdir "$0/groups"
mount --rbind /sys/fs/cgroup "$0/groups"
mount -t sysfs none /sys
mount --move "$0/groups" /sys/fs/cgroup
mount -t tmpfs none /run
"""


class Lxd:
    """Launches containers one after the other, and times them."""

    def __init__(self, name: str, directory: Path, raw: RawContainers) -> None:
        self._name = name
        self._raw = raw
        self.environment = {
            **os.environ,
            "LXD_DIR": str(directory / "lxd"),
            "LXD_CONF": str(directory / "client"),
            "LXD_SECURITY_APPARMOR": "false",  # profiles would be the host's own, outside of any namespace
        }

    def launch(self) -> float:
        """Seconds from starting lxc to the guest's answer."""
        began = self._raw.begin()
        try:
            self.run("lxc", "launch", "--quiet", IMAGE, self._name)
            return self._raw.answer(LXC_IP, began)
        finally:
            # Not there if it could not be made, which has been said.
            self.run("lxc", "delete", "--force", self._name, check=False)

    @contextmanager
    def runs(self) -> Iterator[None]:
        """A container by lxc launch."""
        try:
            self.run("lxc", "launch", "--quiet", IMAGE, self._name)
            yield
        finally:
            self.run("lxc", "delete", "--force", self._name, check=False)

    def exec_command(self, *words: str) -> tuple[str, ...]:
        """What runs that in it, with `environment`."""
        return ("lxc", "exec", self._name, "--", *words)

    def prepare(self, directory: Path, rootfs: Path) -> None:
        """A pool, the bridge, and the image."""
        # A client without settings greets its user.
        (directory / "client").mkdir()
        (directory / "client" / "config.yml").touch()
        self.run("lxd", "init", "--preseed", text=json.dumps(settings(self._name)))
        metadata = directory / "metadata.tar"
        with tarfile.open(metadata, "w") as archive:
            entry = tarfile.TarInfo("metadata.yaml")
            entry.size = len(METADATA)
            archive.addfile(entry, io.BytesIO(METADATA))
        self.run("lxc", "image", "import", "--quiet", str(metadata), str(rootfs), "--alias", IMAGE)

    def run(self, *command: str, text: str = "", check: bool = True) -> bool:
        """Whether that went well."""
        done = subprocess.run(
            command,
            env=self.environment,
            input=text.encode(),
            check=check,
            stdout=subprocess.DEVNULL,
            stderr=None if check else subprocess.DEVNULL,
        )
        return done.returncode == 0

    def version(self) -> str:
        asked = subprocess.run(["lxd", "--version"], check=True, stdout=subprocess.PIPE, text=True)
        return asked.stdout.strip()

    def note(self) -> str:
        return (
            f"LXD {self.version()}: `lxc launch`, unprivileged, of an image that was imported already, in a "
            "`dir` pool, on the bridge of raw `lxc-start`. Its daemon is up already, and is the bench's own."
        )


def settings(group: str) -> dict[str, object]:
    """What `lxd init` is told."""
    groups = {"monitor": "monitor", "container": "container", "monitor.pivot": "pivot"}
    return {
        "storage_pools": [{"name": "pool", "driver": "dir"}],
        "profiles": [
            {
                "name": "default",
                "config": {
                    "raw.lxc": "\n".join(f"lxc.cgroup.dir.{key} = {group}/{at}" for key, at in groups.items())
                },
                "devices": {
                    "root": {"type": "disk", "path": "/", "pool": "pool"},
                    "eth0": {
                        "type": "nic",
                        "nictype": "bridged",
                        "parent": BRIDGE,
                        "name": "eth0",
                        "hwaddr": mac_for(LXC_IP),
                    },
                },
            }
        ],
    }


@contextmanager
def lxd_peer(namespace: str, raw: RawContainers, rootfs: Path) -> Iterator[Lxd | str]:
    """The peer, or why there is none."""
    with ExitStack() as stack:
        yield _start(stack, namespace, raw, rootfs) if is_installed() else "LXD: not installed."


def is_installed() -> bool:
    """Whether the tools are there, and not those of a snap, which start only where snapd has put them."""
    found = [shutil.which(tool) for tool in ("lxd", "lxc")]
    return all(path is not None and "/snap/" not in path for path in found)


def _start(stack: ExitStack, namespace: str, raw: RawContainers, rootfs: Path) -> Lxd | str:
    directory = Path(tempfile.mkdtemp(prefix="atoll-bench-lxd-", dir="/var/tmp"))
    stack.callback(shutil.rmtree, directory)
    directory.chmod(0o711)  # containers have other users
    name = f"atoll-bench-lxd-{os.getpid()}"
    stack.callback(cgroups.remove, name)
    cgroups.ensure(name, cgroups.Limits())
    peer = Lxd(name, directory, raw)
    # LXC makes its groups below that of process 1: that shall be ours.
    joins = "\n".join(f"echo 0 > {path}" for path in cgroups.join_paths(name))
    daemon = ["lxd", "--group", "root"]

    def is_up() -> bool:
        return peer.run("lxd", "waitready", "--timeout=1", check=False)

    try:
        stack.enter_context(
            apart(namespace, directory, joins + MOUNTS, daemon, is_up, environment=peer.environment)
        )
    except RuntimeError as error:
        return f"LXD: not measured: {error}"
    peer.prepare(directory, rootfs)
    return peer
