"""Certificates with which an owner of a VM logs in to its guest by SSH. Pure declarations.

The connection itself goes through `vm.forward`, or any other way to the guest.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from atoll.api.access import Access
from atoll.api.route import NOTHING, Unary
from atoll.model.ssh import SshKey, check_ssh_key


class AskSsh(Struct, frozen=True, forbid_unknown_fields=True):
    """The public key that is to open the VM: one that was made for this, and that its maker forgets afterwards."""

    key: SshKey

    def __post_init__(self) -> None:
        check_ssh_key("key", self.key)


class SshAccess(Struct, frozen=True):
    """What `ssh` needs."""

    certificate: str
    """Of the key, for this VM alone: what a CertificateFile holds."""
    expires_at: datetime
    """When it opens nothing any more; a session that began in time goes on."""
    host: str
    """The name by which the guest's SSH server is known: HostKeyAlias."""
    host_ca: str
    """Who vouches for that server: `@cert-authority` in a known_hosts file."""


VM_SSH = Unary(
    "vm.ssh",
    "POST",
    "/v1/vms/{vm}/ssh",
    summary="A certificate of a few minutes that opens the guest to an SSH key, and who vouches for its SSH server",
    access=Access.OWNER,
    body=AskSsh,
    query=NOTHING,
    result=SshAccess,
)

ROUTES = (VM_SSH,)
