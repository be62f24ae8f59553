"""An image whose guests have a real OpenSSH server: the appliance, with Debian's sshd and what it needs beside it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from atoll.images import cpio, tar
from atoll.images.store import ImageStore
from atoll.model.image import Ability, Image

NAME = "ssh-server"

START = """#!/bin/sh
set -e
mkdir -p /run/sshd
at=http://169.254.169.254
token=$(curl -sf -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" $at/latest/api/token)
curl -sf -H "X-aws-ec2-metadata-token: $token" $at/atoll/ssh/setup | sh
/usr/sbin/sshd
"""
"""User data that has the guest's server set up by its cloud, and started."""

_PASSWD = b"""root::0:0:root:/root:/bin/sh
sshd:x:101:101::/run/sshd:/bin/false
www:x:1000:1000::/tmp:/bin/sh
"""
_CONFIG = b"Include /etc/ssh/sshd_config.d/*.conf\nUsePAM no\n"


def add_ssh_image(directory: Path) -> Image:
    """Into a store that has the appliance."""
    store = ImageStore(directory)
    appliance = store.get("appliance")
    extra, initrd = _entries(), store.path(appliance, appliance.boot.initrd).read_bytes()
    with tempfile.TemporaryDirectory() as workshop:
        made = Path(workshop)
        (made / "initrd").write_bytes(initrd + cpio.archive(extra))
        (made / "rootfs.tar").write_bytes(_with(store.path(appliance, appliance.rootfs), extra))
        kernels = {name: store.path(appliance, name) for name in ("kernel", "bzimage")}
        return store.add(
            NAME,
            kinds=appliance.kinds,
            boot=appliance.boot,
            files=kernels | {name: made / name for name in ("initrd", "rootfs.tar")},
            rootfs="rootfs.tar",
            min_memory_mib=160,
            ready=appliance.ready,
            agent=True,
            imdsv2=True,
            honours=(Ability.SCRIPT, Ability.SSH_CERTIFICATES),
        )


def _entries() -> list[cpio.Entry]:
    sshd = Path(sys.executable).with_name("sshd")
    if not sshd.exists():
        pytest.skip("there is no sshd: make setup-test")
    programs = {f"usr/bin/{name}": Path("/usr/bin") / name for name in ("ssh-keygen", "curl")}
    programs["usr/sbin/sshd"] = sshd
    libraries = {path for program in programs.values() for path in _libraries(program)}
    return [
        *(cpio.regular_file(path.lstrip("/"), Path(path).read_bytes(), 0o755) for path in sorted(libraries)),
        *(cpio.regular_file(path, program.read_bytes(), 0o755) for path, program in programs.items()),
        cpio.regular_file("etc/passwd", _PASSWD),
        cpio.regular_file("etc/ssh/sshd_config", _CONFIG),
        cpio.directory("etc/ssh/sshd_config.d"),
    ]


def _libraries(program: Path) -> list[str]:
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", said)


def _with(archive: Path, extra: list[cpio.Entry]) -> bytes:
    """The same archive with these files, instead of those of the same names."""
    own = tar.archive(extra)
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as both:
        names = set()
        for data in (own, archive.read_bytes()):
            with tarfile.open(fileobj=io.BytesIO(data)) as one:
                for member in one:
                    if member.name not in names:
                        names.add(member.name)
                        both.addfile(member, one.extractfile(member) if member.isfile() else None)
    return target.getvalue()
