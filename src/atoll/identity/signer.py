"""`python -m atoll.identity.signer DIRECTORY`: signs one request of a service with the CA there.

A process of its own for each request, so that the one that asks, such as the Hypervisor, never holds the CA's
key. The request comes on standard input and holds no key; certificates go to standard output. It signs roles,
none for longer than a day, and renews what is a server's: the same names for the same key, and as long as before. What
it signs for somebody who was invited, the invitation says, which is kept with the CA: the one that asks cannot choose.
For `atoll vm ssh` it signs with keys that are for that alone: see ssh_signing.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import msgspec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from msgspec import Struct

from atoll.errors import AtollError, Denied, Invalid, Malformed
from atoll.identity import certificates, requests
from atoll.identity.authority import Authority, locked
from atoll.identity.certificates import UNREADABLE, PublicKey
from atoll.identity.claims import Kind
from atoll.identity.contents import Contents
from atoll.identity.invitations import Invitations
from atoll.identity.roles import MAX_LIFETIME, Algorithm, Certificates, PublicKeys, claims_of, subject_of
from atoll.identity.ssh_authority import SshAuthority
from atoll.identity.ssh_signing import AskTrust, HostKey, Login, sign_ssh
from atoll.model.vm import Role
from atoll.system import clock, steps

MAX_REQUEST = 1 << 16


class Request(Struct, frozen=True, forbid_unknown_fields=True, tag="role", tag_field="sign"):
    """Certificates of a role that are wanted, and what their SSH key ids are to say of the holder."""

    role: Role
    holder: str
    keys: dict[Algorithm, PublicKeys]
    lifetime_s: int


class Answer(Struct, frozen=True):
    certificates: dict[Algorithm, Certificates]
    ca: str
    ssh_ca: str


class Renewal(Struct, frozen=True, forbid_unknown_fields=True, tag="renewal", tag_field="sign"):
    """A server's certificate of this CA, of which a new one is wanted."""

    certificate: str


class Renewed(Struct, frozen=True):
    certificate: str


class Redemption(Struct, frozen=True, forbid_unknown_fields=True, tag="invitation", tag_field="sign"):
    """The secret of an invitation, and a certificate request of whoever brought it."""

    id: str
    secret: str
    """In hexadecimal."""
    request: str

    def __repr__(self) -> str:
        return f"Redemption({self.id!r})"


class Redeemed(Struct, frozen=True):
    """Nothing of it is there where the invitation is not valid."""

    certificate: str = ""
    ca: str = ""
    subject: str = ""
    serial: str = ""


def redeem(authority: Authority, request: Redemption) -> Redeemed:
    """What was promised, for the key of whoever comes first. An invitation that is taken is used, come what may."""
    key = requests.public_key(request.request.encode())
    try:
        with locked(authority.directory):
            taken = Invitations(authority.directory).take(
                request.id, bytes.fromhex(request.secret), clock.now()
            )
    except Denied:
        return Redeemed()
    steps.step("invitation.taken")
    made = authority.certify(taken.claims, key, timedelta(seconds=taken.lifetime_s))
    return Redeemed(made.cert_pem.decode(), authority.cert_pem.decode(), taken.claims.subject, made.serial)


def renew(authority: Authority, request: Renewal) -> Renewed:
    """Users are not renewed by a service: how long they may call is for their issuer to say."""
    pem = request.certificate.encode()
    contents = Contents(certificates.from_pem(pem))
    if contents.kind is not Kind.SERVER:
        raise Denied(
            f"renewing the certificate of {contents.subject or 'nobody'}: it is that of a {contents.kind}",
            hint="only those of servers are renewed here; issue another with: atoll ca issue",
        )
    return Renewed(authority.renew(pem).cert_pem.decode())


def sign(authority: Authority, request: Request) -> Answer:
    """All certificates of one request."""
    lifetime = timedelta(seconds=request.lifetime_s)
    if not timedelta(0) < lifetime <= MAX_LIFETIME:
        raise Invalid("lifetime", str(lifetime), f"must be more than 0 and at most {MAX_LIFETIME}")
    ssh = SshAuthority(authority.directory)
    with locked(authority.directory):
        ssh_ca = ssh.ensure()
    key_id = f"{subject_of(request.role)} {request.holder}"[:256]
    now = clock.now()
    made = {
        algorithm: Certificates(
            authority.certify(claims_of(request.role), _public_key(keys.pem), lifetime).cert_pem.decode(),
            ssh.sign(keys.ssh, [request.role], key_id, now=now, lifetime=lifetime),
        )
        for algorithm, keys in request.keys.items()
    }
    return Answer(made, authority.cert_pem.decode(), ssh_ca)


Asked: TypeAlias = Request | Renewal | Redemption | Login | HostKey | AskTrust
"""All that is signed here."""


def answer_to(authority: Authority, request: Asked) -> Struct:
    match request:
        case Request():
            return sign(authority, request)
        case Renewal():
            return renew(authority, request)
        case Redemption():
            return redeem(authority, request)
        case Login() | HostKey() | AskTrust():
            return sign_ssh(authority.directory, request)


def _public_key(pem: str) -> PublicKey:
    try:
        key = load_pem_public_key(pem.encode())
    except UNREADABLE as error:
        raise Malformed("reading a public key: not a PEM public key") from error
    if not isinstance(key, PublicKey):
        raise Malformed("reading a public key: neither ECDSA, Ed25519 nor RSA")
    return key


def main() -> int:
    try:
        data = sys.stdin.buffer.read(MAX_REQUEST + 1)
        if len(data) > MAX_REQUEST:
            raise Malformed(f"a request of more than {MAX_REQUEST} bytes")
        try:
            request: Asked = msgspec.json.decode(data, type=Asked)
        except msgspec.MsgspecError as error:
            raise Malformed(f"a request that is not one: {error}".lower()) from None
        authority = Authority.open(Path(sys.argv[1]))
        answer = answer_to(authority, request)
    except AtollError as error:
        sys.stderr.write(f"{error.brief}\n")
        return error.exit_status
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
