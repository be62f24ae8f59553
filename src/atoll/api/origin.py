"""Requests that a page of somebody else has a browser send: none of them is taken. Pure.

A browser shows the certificate of its user to whatever page asks, so a certificate alone does not say that the user
wants what is asked. No page of ours exists, but one on the very same address and port would be taken.
"""

from __future__ import annotations

from collections.abc import Mapping

from atoll.errors import Denied, Malformed

OWN_SITES = (None, "same-origin", "none")
"""What browsers say of a request that no other site has made: of an address that was typed, `none`."""
SAFE = ("GET", "HEAD")
OF_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""What a page can have sent anywhere without asking first."""


def check_origin(verb: str, headers: Mapping[str, str]) -> None:
    """Denied or Malformed where another site may be behind a request."""
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    if site not in OWN_SITES or (origin is not None and not _is_own(origin, headers.get("Host"))):
        raise Denied(
            "this request comes from a page of another site",
            hint="call from a program: browsers are served nothing of other sites here",
        )
    if verb not in SAFE and _type_of(headers) in OF_FORMS:
        raise Malformed(
            f"Content-Type {_type_of(headers)!r}: forms are not taken",
            hint="send JSON as application/json, or no body and no type",
        )


def _is_own(origin: str, host: str | None) -> bool:
    return host is not None and origin == f"https://{host}"


def _type_of(headers: Mapping[str, str]) -> str:
    return headers.get("Content-Type", "").partition(";")[0].strip().lower()
