"""SmallStack's tree: the marks by which it is known, the time, the identity and its credentials. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from atoll.guestnet.metadata.guest import BYTES, Guest, Leaf, Leaves
from atoll.guestnet.metadata.identity_document import smallstack_document

IDENTITY = "dynamic/instance-identity"
DOCUMENT = f"{IDENTITY}/document"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRUE = Leaf(b"true\n")


def datasource(guest: Guest) -> Leaves:
    return {"SmallStack": _TRUE}


def latest(guest: Guest) -> Leaves:
    leaves = {
        "is-externally-patchable": _TRUE,
        "dynamic/epoch-time": Leaf(_epoch_time),
        DOCUMENT: smallstack_document(guest),
    }
    if guest.user_data is not None:
        leaves["user-data"] = Leaf(lambda now: guest.read_user_data(), BYTES)
    if guest.credentials is not None:
        leaves |= {f"{IDENTITY}/{name}": Leaf(body) for name, body in guest.credentials.files().items()}
    return leaves


def _epoch_time(now: datetime) -> bytes:
    seconds, microseconds = divmod((now - _EPOCH) // timedelta(microseconds=1), 1_000_000)
    return f"{seconds}.{microseconds * 1000:09d}\n".encode()
