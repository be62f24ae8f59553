"""Small checks that values make of themselves. Pure.

The `Annotated` forms carry the same limits into the wire schema, so that what the reference promises and what
a constructor takes are one thing.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from msgspec import Meta

from atoll.errors import Invalid

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
IMAGE_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?$"
TAG_KEY_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,62}[A-Za-z0-9])?$"
PRINCIPAL_PATTERN = r"^[A-Za-z0-9_]([A-Za-z0-9_.@-]{0,126}[A-Za-z0-9_])?$"
OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IP_PATTERN = rf"^{OCTET}(\.{OCTET}){{3}}$"
MAC_PATTERN = r"^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$"
CIDR_PATTERN = rf"^{OCTET}(\.{OCTET}){{3}}/([89]|[12][0-9]|30)$"
IP6_PATTERN = r"^[0-9a-f:]{2,39}$"
CIDR6_PATTERN = r"^[0-9a-f:]{2,39}/64$"
LINK_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$"
DOMAIN_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
MAX_TAGS = 64

Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=63, description="a DNS label")]
ImageName = Annotated[str, Meta(pattern=IMAGE_PATTERN, max_length=128)]
Ip = Annotated[str, Meta(pattern=IP_PATTERN, max_length=15, description="an IPv4 address")]
Mac = Annotated[
    str, Meta(pattern=MAC_PATTERN, min_length=17, max_length=17, description="a unicast MAC, lower case")
]
Cidr = Annotated[str, Meta(pattern=CIDR_PATTERN, max_length=18, description="a network, /8 to /30")]
Ip6 = Annotated[str, Meta(pattern=IP6_PATTERN, max_length=39, description="an IPv6 address")]
Cidr6 = Annotated[str, Meta(pattern=CIDR6_PATTERN, max_length=42, description="an IPv6 network, /64")]
Principal = Annotated[str, Meta(pattern=PRINCIPAL_PATTERN, max_length=128, description="a user or group")]
TagKey = Annotated[str, Meta(pattern=TAG_KEY_PATTERN, max_length=64)]
TagValue = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=256)]
Tags = Annotated[dict[TagKey, TagValue], Meta(max_length=MAX_TAGS)]


def check_pattern(field: str, value: str, pattern: str, shape: str, *, hint: str = "") -> str:
    """The value itself, or Invalid. `fullmatch`, so that a trailing newline does not pass."""
    if not isinstance(value, str) or not re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value):
        raise Invalid(field, value, f"must be {shape}", hint=hint)
    return value


def check_name(field: str, value: str) -> str:
    shape = "1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
    return check_pattern(field, value, NAME_PATTERN, shape, hint="choose one such as web or db-2")


def check_image(field: str, value: str) -> str:
    shape, hint = "1 to 128 of a-z, 0-9, '.', '_' and '-', without '/' or blanks", "see: atoll image list"
    check_pattern(field, value, IMAGE_PATTERN, shape, hint=hint)
    if ".." in value:
        raise Invalid(field, value, "must not contain '..'", hint=hint)
    return value


def check_ip(field: str, value: str) -> str:
    return check_pattern(field, value, IP_PATTERN, "an IPv4 address such as 10.1.2.3")


def is_ip(text: str) -> bool:
    return re.fullmatch(IP_PATTERN, text) is not None


def check_ip6(field: str, value: str) -> str:
    check_pattern(field, value, IP6_PATTERN, "an IPv6 address in lower case, such as fd00:1::5")
    try:
        shortest = str(ipaddress.IPv6Address(value))
    except ValueError:
        raise Invalid(field, value, "must be an IPv6 address such as fd00:1::5") from None
    if value != shortest:
        raise Invalid(field, value, "is not in its shortest form", hint=f"write {shortest}")
    return value


def check_mac(field: str, value: str) -> str:
    return check_pattern(
        field, value, MAC_PATTERN, "a unicast MAC address in lower case, such as 52:54:0a:01:02:03"
    )


def check_principal(field: str, value: str) -> str:
    return check_pattern(
        field, value, PRINCIPAL_PATTERN, "a user or group name of letters, digits and _ . @ -"
    )


def check_range(field: str, value: int, low: int, high: int, unit: str = "") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        measure = f" {unit}" if unit else ""
        least = f"give at least {low}{measure}" if isinstance(value, int) and value < low else ""
        raise Invalid(
            field,
            value,
            f"must be a whole number from {low} to {high}{measure}",
            hint=least or f"give at most {high}{measure}",
        )
    return value


def check_tags(field: str, tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MAX_TAGS:
        raise Invalid(field, f"{len(tags)} tags", f"must be at most {MAX_TAGS}")
    for key, value in tags.items():
        check_pattern(f"{field} key", key, TAG_KEY_PATTERN, "1 to 64 letters, digits and . _ / -")
        check_pattern(f"{field} {key}", value, r"[^\x00-\x1f\x7f]{0,256}", "at most 256 printable characters")
    return tags


def network_of(field: str, value: str) -> ipaddress.IPv4Network:
    check_pattern(field, value, CIDR_PATTERN, "a network such as 10.1.2.0/24, /8 to /30")
    try:
        return ipaddress.IPv4Network(value)
    except ValueError:
        base = ipaddress.IPv4Interface(value).network
        raise Invalid(field, value, "has host bits set", hint=f"the network is {base}") from None


def is_network(text: str) -> bool:
    """Whether this means a network, of whatever size, and not a name."""
    return "/" in text


def check_network(field: str, value: str) -> str:
    """A network of IPv4 or IPv6 addresses of any size, as it is usually written."""
    try:
        network = ipaddress.ip_network(value)
    except ValueError:
        why = "must be a network such as 10.1.0.0/16, 0.0.0.0/0 or fd00::/8, without host bits"
        raise Invalid(field, value, why) from None
    if value != str(network):
        raise Invalid(field, value, "is not in its shortest form", hint=f"write {network}")
    return value


def network6_of(field: str, value: str) -> ipaddress.IPv6Network:
    check_pattern(field, value, CIDR6_PATTERN, "an IPv6 network such as fd00:1::/64, always /64")
    try:
        network = ipaddress.IPv6Network(value)
    except ValueError:
        why = "must be an IPv6 network such as fd00:1::/64, without host bits"
        raise Invalid(field, value, why) from None
    if value != str(network):
        raise Invalid(field, value, "is not in its shortest form", hint=f"write {network}")
    return network
