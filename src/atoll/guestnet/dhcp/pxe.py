"""What a DHCP client that boots over the network is told. Pure.

firmware, PXE   (option 60 PXEClient, or 93)   a program that it can run, by its architecture
firmware, HTTP  (option 60 HTTPClient)         the same as a URL
iPXE            (option 77 iPXE, or 175)       a script
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from atoll.guestnet.dhcp.codec import NO_ADDRESS, Code, Message
from atoll.guestnet.netboot.names import HTTP_PORT, SCRIPT
from atoll.model.lease import Boot

# By IANA's registry of processor architecture types. Those above 14 are the ones that speak HTTP.
_PROGRAMS = {
    0: "undionly.kpxe",
    6: "ipxe-i386.efi",
    7: "ipxe.efi",
    9: "ipxe.efi",
    11: "ipxe-arm64.efi",
    15: "ipxe-i386.efi",
    16: "ipxe.efi",
    19: "ipxe-arm64.efi",
    20: "undionly.kpxe",
}
_FILE_BYTES = 127
_HTTP = b"HTTPClient"
# iPXE's own option no-pxedhcp: without it, it waits seconds for another server to say what to boot.
_NO_PROXY = b"\xb0\x01\x01"


class Directions(Struct, frozen=True):
    """The fields and options of a reply that are about booting."""

    server: str = NO_ADDRESS
    sname: bytes = b""
    file: bytes = b""
    options: Mapping[int, bytes] = {}


NOTHING = Directions()


def directions(message: Message, boot: Boot, server: str) -> Directions:
    """What to tell this client; nothing to one that does not boot. `server` is our own address."""
    name = _name(message, boot)
    if not name:
        return NOTHING
    server = boot.server or server
    options: dict[int, bytes] = {}
    if message.vendor_class.startswith(_HTTP):
        if "://" not in name:
            name = f"http://{server}:{HTTP_PORT}/{name.lstrip('/')}"
        options[Code.VENDOR_CLASS] = _HTTP  # firmware passes over an offer without it
    if message.is_ipxe:
        options[Code.IPXE] = _NO_PROXY
    options[Code.TFTP_SERVER] = server.encode()
    options[Code.BOOT_FILE] = name.encode()
    file = name.encode() if len(name) <= _FILE_BYTES else b""
    return Directions(server, server.encode(), file, options)


def _name(message: Message, boot: Boot) -> str:
    if message.is_ipxe:
        return boot.script or SCRIPT
    boots = message.vendor_class.startswith((b"PXEClient", _HTTP)) or message.architecture is not None
    if boots:
        return boot.file or _PROGRAMS.get(message.architecture or 0, "")
    # Boot loaders of boards say nothing of PXE, but ask for the name of a file.
    return boot.file if Code.BOOT_FILE in message.parameters else ""
