"""The SSH side of the small CA: keys of their own in the same directory. Touches their files.

ssh.key         signs certificates of roles, which are SSH users wherever somebody trusts them
ssh-login.key   signs certificates that open one VM to one of its owners, for minutes: atoll vm ssh
ssh-host.key    signs certificates of the SSH servers of VMs

Beside each is its public key (.pub): what sshd is told to trust (TrustedUserCAKeys), or ssh (known_hosts).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
    load_ssh_public_key,
)

from atoll.errors import Malformed
from atoll.identity import certificates
from atoll.identity.certificates import KeyKind
from atoll.system import files

BACKDATE = certificates.BACKDATE
EXTENSIONS = (
    "permit-X11-forwarding",
    "permit-agent-forwarding",
    "permit-port-forwarding",
    "permit-pty",
    "permit-user-rc",
)


FOR_EVER = 2**64 - 1
"""How SSH writes that a certificate does not end."""


class SshCa(StrEnum):
    """What a CA signs, each with a key of its own, so that no certificate is good for something else; and its files."""

    ROLES = "ssh"
    LOGINS = "ssh-login"
    HOSTS = "ssh-host"


class SshAuthority:
    """One SSH CA on disk; made when it is first needed."""

    def __init__(self, directory: Path, ca: SshCa = SshCa.ROLES) -> None:
        self._key_path = directory / f"{ca}.key"
        self._public_path = directory / f"{ca}.pub"

    def ensure(self) -> str:
        """The CA's public key. Whoever calls holds the lock of the directory, or is alone in it."""
        if not self._key_path.exists():
            key = certificates.make_key(KeyKind.ED25519)
            files.write_durably(self._key_path, certificates.key_to_pem(key))
        if not self._public_path.exists():
            public = self._key().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            files.write_durably(self._public_path, public + b" atoll\n", mode=0o644)
        return self._public_path.read_text()

    def sign(
        self, public_ssh: str, principals: Sequence[str], key_id: str, *, now: datetime, lifetime: timedelta
    ) -> str:
        """A user certificate, as one line."""
        builder = _certificate(public_ssh, principals, key_id, now)
        builder = builder.type(SSHCertificateType.USER).valid_before(int((now + lifetime).timestamp()))
        for name in EXTENSIONS:
            builder = builder.add_extension(name.encode(), b"")
        return self._signed(builder)

    def sign_host(self, public_ssh: str, names: Sequence[str], key_id: str, *, now: datetime) -> str:
        """A certificate of an SSH server, as one line. It does not end: see ADR 69."""
        builder = _certificate(public_ssh, names, key_id, now)
        return self._signed(builder.type(SSHCertificateType.HOST).valid_before(FOR_EVER))

    def _signed(self, builder: SSHCertificateBuilder) -> str:
        return builder.sign(self._key()).public_bytes().decode() + "\n"

    def _key(self) -> certificates.Key:
        return certificates.key_from_pem(self._key_path.read_bytes())


def _certificate(
    public_ssh: str, principals: Sequence[str], key_id: str, now: datetime
) -> SSHCertificateBuilder:
    return (
        SSHCertificateBuilder()
        .public_key(public_key(public_ssh))
        .serial(secrets.randbits(63))
        .key_id(key_id.encode())
        .valid_principals([principal.encode() for principal in principals])
        .valid_after(int((now - BACKDATE).timestamp()))
    )


def public_key(
    public_ssh: str,
) -> ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey:
    try:
        key = load_ssh_public_key(public_ssh.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Malformed("reading an SSH public key: not one line of an OpenSSH key") from error
    if not isinstance(key, certificates.PublicKey):
        raise Malformed("reading an SSH public key: neither ECDSA, Ed25519 nor RSA")
    return key
