"""What a guest needs so that its owners can log in by `atoll vm ssh`. Pure, but that the script is a file beside this.

ssh/user-ca            whose certificates its SSH server is to trust: TrustedUserCAKeys
ssh/principals         those of them that are for this guest: AuthorizedPrincipalsFile
ssh/host-certificate   for the key in the header X-Atoll-SSH-Host-Key: HostCertificate
ssh/setup              a script that does all of this; cloud-init gets it as vendor data
"""

from __future__ import annotations

from pathlib import Path

from atoll.errors import AtollError, Invalid, Malformed, TooMany
from atoll.guestnet.http.found import TEXT, Found
from atoll.guestnet.metadata.guest import Guest, Leaf, Leaves, text

KEY_HEADER = "X-Atoll-SSH-Host-Key"
CERTIFICATE_PATH = "/atoll/ssh/host-certificate"
NO_KEY = Found(400, TEXT, f"the header {KEY_HEADER} must hold the server's public key\n".encode())

SETUP = Path(__file__).with_name("ssh_setup.sh").read_bytes()


def leaves(guest: Guest) -> Leaves:
    """None of it where the node has no CA for it."""
    if not guest.ssh_ca:
        return {}
    return {
        "ssh/setup": Leaf(SETUP),
        "ssh/user-ca": Leaf(guest.ssh_ca.encode()),
        "ssh/principals": text(f"{guest.vm.instance_id}\n"),
        "ssh/host-certificate": Leaf(NO_KEY.body),
    }


def vendor_data(guest: Guest) -> bytes:
    """What cloud-init runs beside the user data of the VM's owner, who can switch that off."""
    return SETUP if guest.ssh_ca else b""


def refused(error: AtollError) -> Found:
    """Why there is no certificate."""
    body = f"{error.brief}\n".encode()
    if isinstance(error, TooMany):
        return Found(429, TEXT, body, {"Retry-After": str(error.details["retry_after_s"])})
    return Found(400 if isinstance(error, Malformed | Invalid) else 503, TEXT, body)
