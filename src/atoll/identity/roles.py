"""Roles: what a VM acts as, who may give it one, what it may do, its keys and credentials. Pure but for making keys.

A role named `web` is the user `web@role` in its certificates, and principal `web` in those for SSH. People
are never called so: being in a group that happens to have somebody's name makes nobody that person. Other
issuers call roles as they like; which of their users are roles, a node is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from msgspec import Struct

from atoll.errors import Denied
from atoll.identity.access import Operators
from atoll.identity.claims import Claims, user_claims
from atoll.model.identity import Identity
from atoll.model.vm import check_role

LIFETIME = timedelta(hours=12)
MAX_LIFETIME = timedelta(hours=24)
RSA_BITS = 2048
_SUFFIX = "@role"


class Algorithm(StrEnum):
    RSA = "RSA"
    ED25519 = "Ed25519"


class PublicKeys(Struct, frozen=True):
    """One key in the two forms that issuers want it in."""

    pem: str
    ssh: str


class KeyPair(Struct, frozen=True):
    """One key in all forms. The private ones never leave memory but to the VM that they are for."""

    public: PublicKeys
    private_pem: bytes
    private_ssh: bytes

    def __repr__(self) -> str:
        return f"KeyPair({self.public.ssh!r})"


class Certificates(Struct, frozen=True):
    """What an issuer made of one key."""

    x509: str
    ssh: str


class CloudCredential(Struct, frozen=True):
    """What a public cloud takes for a while."""

    access_key_id: str
    secret_access_key: str
    token: str
    issued_at: datetime
    expires_at: datetime

    def __repr__(self) -> str:
        return f"CloudCredential({self.access_key_id!r}, expires_at={self.expires_at!r})"


class RoleCredentials(Struct, frozen=True):
    """Everything that a VM can show for its role. Of no use after `expires_at`."""

    role: str
    keys: Mapping[Algorithm, KeyPair]
    certificates: Mapping[Algorithm, Certificates]
    issued_at: datetime
    expires_at: datetime
    ca: str = ""
    """The CA that the X.509 certificates are of, which is also that of the Hypervisor's control port."""
    ssh_ca: str = ""
    cloud: CloudCredential | None = None

    def __repr__(self) -> str:
        return f"RoleCredentials({self.role!r}, expires_at={self.expires_at!r})"

    def files(self) -> dict[str, bytes]:
        """By the names under which SmallStack serves them."""
        found: dict[str, bytes] = {}
        for algorithm, pair in self.keys.items():
            certificates = self.certificates[algorithm]
            found[f"{algorithm}-X.509-certificate"] = certificates.x509.encode()
            found[f"{algorithm}-X.509-key"] = pair.private_pem
            found[f"{algorithm}-SSH-certificate"] = certificates.ssh.encode()
            found[f"{algorithm}-SSH-key"] = pair.private_ssh
        # The plain names are those of the key that every TLS library takes.
        found["X.509-certificate"] = found["RSA-X.509-certificate"]
        found["X.509-key"] = found["RSA-X.509-key"]
        if self.ca:
            found["X.509-ca-certificate"] = self.ca.encode()
        if self.ssh_ca:
            found["SSH-ca-public-key"] = self.ssh_ca.encode()
        return found


class RoleCallers(Struct, frozen=True, forbid_unknown_fields=True):
    """Which callers are VMs that act in a role, and which of those may create VMs. Both by names or patterns."""

    users: tuple[str, ...] = ()
    """Users that are roles, such as `svc-*`, besides every `<role>@role`."""
    may_create: tuple[str, ...] = ()
    """Roles whose VMs may create VMs here; none: a VM cannot make others."""

    def role_of(self, user: str) -> str | None:
        """The role that this user is, or None: a person or a program of its own."""
        if user.endswith(_SUFFIX):
            return user.removesuffix(_SUFFIX)
        return user if _is_among(user, self.users) else None


def check_creator(identity: Identity, callers: RoleCallers) -> None:
    """Whoever gets hold of one VM must not get as many as the node has room for."""
    role = callers.role_of(identity.user)
    if role is not None and not _is_among(role, callers.may_create):
        raise Denied(
            f"{identity.user} may not create a VM here: it is the role of a VM",
            hint=f"an operator of the node can name the role {role} in its setting role_callers.may_create",
            details={"user": identity.user, "role": role, "setting": "role_callers.may_create"},
        )


def check_role_given(identity: Identity, role: str, operators: Operators) -> None:
    """Operators may give any role; others the roles that their certificate names as groups."""
    if role not in identity.groups and not operators.include(identity):
        raise Denied(
            f"{identity.user} may not give a VM the role {role}",
            hint=f"it takes a certificate with group {role}, an operator of the node, or a credential of the role",
            details={"user": identity.user, "role": role},
        )


def subject_of(role: str) -> str:
    """The user that a role is."""
    return f"{check_role(role)}{_SUFFIX}"


def claims_of(role: str) -> Claims:
    """Nothing but the name: what a role may do is for those that it calls to say."""
    return user_claims(subject_of(role))


def _is_among(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def make_keys() -> dict[Algorithm, KeyPair]:
    """Takes a tenth of a second, most of it for RSA."""
    return {
        Algorithm.RSA: _pair(rsa.generate_private_key(65537, RSA_BITS)),
        Algorithm.ED25519: _pair(ed25519.Ed25519PrivateKey.generate()),
    }


def _pair(key: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> KeyPair:
    public = key.public_key()
    return KeyPair(
        PublicKeys(
            public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
            public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode(),
        ),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
    )
