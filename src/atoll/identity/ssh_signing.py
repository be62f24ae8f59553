"""What the signer signs for `atoll vm ssh`: logins of people, keys of SSH servers. Touches the SSH CAs of a directory.

Both are for one instance and no other: its id is the only principal. A login lasts minutes; what it may open, the
guest says, which trusts the CA of logins for its own id alone.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from atoll.errors import Invalid
from atoll.identity.authority import locked
from atoll.identity.ssh_authority import SshAuthority, SshCa
from atoll.model.checks import NAME_PATTERN
from atoll.system import clock

MAX_LOGIN = timedelta(hours=1)
MAX_KEY_ID = 256

Instance = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=63)]


class SshTrust(Struct, frozen=True):
    """The public keys of the CAs: what guests trust, and what callers do."""

    login_ca: str
    host_ca: str


class Login(Struct, frozen=True, forbid_unknown_fields=True, tag="ssh-login", tag_field="sign"):
    """A key of a caller who may log in to an instance; `holder` is what the guest's log is to say of them."""

    instance: Instance
    holder: str
    key: str
    lifetime_s: int


class HostKey(Struct, frozen=True, forbid_unknown_fields=True, tag="ssh-host", tag_field="sign"):
    """The key of the SSH server of an instance."""

    instance: Instance
    holder: str
    key: str


class AskTrust(Struct, frozen=True, forbid_unknown_fields=True, tag="ssh-trust", tag_field="sign"):
    """Nothing is signed; the CAs are made, if there are none."""


class SshSigned(Struct, frozen=True):
    trust: SshTrust
    certificate: str = ""


def ensure_trust(directory: Path) -> SshTrust:
    """The CAs in a directory, made if there are none."""
    with locked(directory):
        login, host = (SshAuthority(directory, ca).ensure() for ca in (SshCa.LOGINS, SshCa.HOSTS))
    return SshTrust(login, host)


def sign_ssh(directory: Path, request: Login | HostKey | AskTrust) -> SshSigned:
    trust, now = ensure_trust(directory), clock.now()
    match request:
        case AskTrust():
            return SshSigned(trust)
        case HostKey():
            hosts, key_id = SshAuthority(directory, SshCa.HOSTS), request.holder[:MAX_KEY_ID]
            return SshSigned(trust, hosts.sign_host(request.key, [request.instance], key_id, now=now))
        case Login():
            lifetime = timedelta(seconds=request.lifetime_s)
            if not timedelta(0) < lifetime <= MAX_LOGIN:
                raise Invalid("lifetime", str(lifetime), f"must be more than 0 and at most {MAX_LOGIN}")
            logins, key_id = SshAuthority(directory, SshCa.LOGINS), request.holder[:MAX_KEY_ID]
            made = logins.sign(request.key, [request.instance], key_id, now=now, lifetime=lifetime)
            return SshSigned(trust, made)
