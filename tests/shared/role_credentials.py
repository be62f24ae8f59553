"""Long-lived credentials of roles, as an issuer would give them to the creator of a VM."""

from __future__ import annotations

from datetime import timedelta

from atoll.identity.authority import Authority
from atoll.identity.certificates import KeyKind
from atoll.model.long_lived import LongLivedCredential


def a_credential(
    authority: Authority,
    user: str = "web",
    lifetime: timedelta = timedelta(days=30),
    key_kind: KeyKind = KeyKind.P256,
) -> LongLivedCredential:
    issued = authority.issue_user(user, lifetime=lifetime, key_kind=key_kind)
    return LongLivedCredential(issued.cert_pem.decode(), issued.key_pem.decode())


def secret_lines(credential: LongLivedCredential) -> list[str]:
    """What gives the key away wherever it is found: its lines, but not the dashes around them, nor a short last one."""
    return [line for line in credential.key.splitlines() if len(line) > 40 and not line.startswith("-")]
