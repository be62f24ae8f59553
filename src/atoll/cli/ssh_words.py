"""What `ssh` is told by `atoll vm ssh`, and what its complaints mean. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from atoll.api.ssh import SshAccess
from atoll.errors import AtollError, Conflict, Denied, Unreachable

HOST_ALGORITHMS = (
    "ssh-ed25519-cert-v01@openssh.com",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com",
    "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com",
    "rsa-sha2-256-cert-v01@openssh.com",
)
"""Servers prove who they are by a certificate, never by a key that nobody vouches for."""


class SshFiles(Struct, frozen=True):
    """What `ssh` reads and writes of one login, in a directory of its own."""

    directory: Path

    @property
    def key(self) -> Path:
        return self.directory / "key"

    @property
    def certificate(self) -> Path:
        return self.directory / "key-cert.pub"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def config(self) -> Path:
        return self.directory / "config"

    @property
    def log(self) -> Path:
        """What ssh complains of."""
        return self.directory / "log"

    @property
    def way(self) -> Path:
        """Why there is no connection to the guest."""
        return self.directory / "way"


def known_hosts(access: SshAccess) -> str:
    return f"@cert-authority {access.host} {access.host_ca.strip()}\n"


def config(name: str, user: str, host: str, files: SshFiles, way: Sequence[str]) -> str:
    """Nothing of the caller's own configuration counts: no key, no agent, no known host, no master connection."""
    proxy = f"{shlex.join(way)} 2>{shlex.quote(str(files.way))}".replace("%", "%%")
    lines = {
        "HostName": name,
        "User": _quoted(user),
        "HostKeyAlias": host,
        "IdentityFile": _quoted(str(files.key)),
        "CertificateFile": _quoted(str(files.certificate)),
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "PasswordAuthentication": "no",
        "UserKnownHostsFile": _quoted(str(files.known_hosts)),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "HostKeyAlgorithms": ",".join(HOST_ALGORITHMS),
        "CheckHostIP": "no",
        "ServerAliveInterval": "30",
        "LogLevel": "INFO",
        "ProxyCommand": proxy,
    }
    return "\n".join([f"Host {name}", *(f"    {key} {value}" for key, value in lines.items())]) + "\n"


def _quoted(value: str) -> str:
    """Percent signs and blanks mean something to ssh."""
    escaped = value.replace("%", "%%")
    return f'"{escaped}"'


def told_by_way(text: str) -> tuple[str, str]:
    """The brief and the hint of the command that makes the connection; empty where it said nothing."""
    lines = text.splitlines()
    brief = next((line.removeprefix("atoll: ") for line in lines if line.startswith("atoll: ")), "")
    hint = next((line.strip().removeprefix("hint: ") for line in lines if line.startswith("  hint: ")), "")
    return brief, hint


def explained(name: str, user: str, log: str, way: str) -> AtollError | None:
    """Why there was no session, from what ssh and the way to the guest said; None: there was one."""
    brief, hint = told_by_way(way)
    if brief:
        shell = f"; {SHELL.format(name=name)}" if hint else SHELL.format(name=name)
        return Unreachable(f"vm ssh: {brief}", hint=f"{hint}{shell}")
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _ENDED.fullmatch(line.strip())]
    if not lines:
        return None
    said = lines[-1]
    if "Permission denied" in log:
        return Denied(
            f"vm ssh: the SSH server of VM {name} does not let {user} in",
            hint="is there such a user, and does its SSH server trust the cloud (docs/ssh.md)?"
            f" {SHELL.format(name=name)}",
        )
    if "host key" in log.lower() or "Certificate invalid" in log:
        return Conflict(
            f"vm ssh: the SSH server of VM {name} does not prove to be its own: {said}",
            hint=f"it has no certificate of this cloud (docs/ssh.md). {SHELL.format(name=name)}",
        )
    if "Connection" in said or "kex_exchange" in said or "banner" in said:
        return Unreachable(f"vm ssh: the connection to VM {name} ended: {said}", hint=SHELL.format(name=name))
    return AtollError(f"vm ssh: {said}", hint=SHELL.format(name=name))


_ENDED = re.compile(r"(Shared c|C)onnection to \S+ closed\.")
"""What is said of a session on a terminal that was one."""

SHELL = "without SSH and network there is: atoll vm shell {name}"
