"""How somebody without a certificate comes to one: the CA to trust, and invitations. Pure declarations.

Both are for anybody: a CA is no secret, and an invitation proves itself.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from atoll.api.access import Access
from atoll.api.codec import SECRET
from atoll.api.route import NOTHING, Unary
from atoll.model.checks import check_pattern

ID_PATTERN = r"^[0-9a-f]{16}$"
MAX_REQUEST = 8 << 10


class CaCertificate(Struct, frozen=True):
    """The CA that issued the certificate of this service."""

    certificate: str
    """PEM. Whoever asks compares its fingerprint with one that they got in another way."""


class Redeem(Struct, frozen=True, forbid_unknown_fields=True):
    """An invitation, and a request for the certificate that it promises."""

    id: Annotated[str, Meta(pattern=ID_PATTERN)]
    secret: Annotated[str, Meta(pattern=r"^[0-9a-f]{48}$"), SECRET]
    request: Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST)]
    """PKCS #10 in PEM: of it, the key is taken and nothing else."""

    def __repr__(self) -> str:
        return f"Redeem({self.id!r})"

    def __post_init__(self) -> None:
        check_pattern("id", self.id, ID_PATTERN, "16 hexadecimal digits")


class Joined(Struct, frozen=True):
    """Who the caller is from now on."""

    certificate: str
    ca: str


CA_SHOW = Unary(
    "ca.show",
    "GET",
    "/v1/ca",
    summary="The CA of this service, for those who are about to trust it",
    access=Access.PUBLIC,
    body=NOTHING,
    query=NOTHING,
    result=CaCertificate,
)
INVITATION_REDEEM = Unary(
    "invitation.redeem",
    "POST",
    "/v1/invitations/redeem",
    summary="A certificate for somebody who was invited, with a key of their own; good once",
    access=Access.PUBLIC,
    body=Redeem,
    query=NOTHING,
    max_body=16 << 10,
    result=Joined,
)

ROUTES = (CA_SHOW, INVITATION_REDEEM)
