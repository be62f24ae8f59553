from __future__ import annotations

import pytest

from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.answer import Answer, Lease, answer
from atoll.guestnet.dhcp.codec import Code, Kind, Message
from atoll.model.lease import Boot
from atoll.model.network import METADATA_IP, Subnet

MAC, IP = "52:54:0a:01:00:05", "10.1.0.5"
SUBNET = Subnet(id="blue", cidr="10.1.0.0/24", gateway="10.1.0.1", service_ip="10.1.0.2")

BIOS = {Code.VENDOR_CLASS: b"PXEClient:Arch:00000:UNDI:002001", Code.ARCHITECTURE: b"\0\0"}
UEFI = {Code.VENDOR_CLASS: b"PXEClient:Arch:00007:UNDI:003016", Code.ARCHITECTURE: b"\0\7"}
ARM = {Code.VENDOR_CLASS: b"PXEClient:Arch:00011:UNDI:003016", Code.ARCHITECTURE: b"\0\x0b"}
HTTP = {Code.VENDOR_CLASS: b"HTTPClient:Arch:00016:UNDI:003001", Code.ARCHITECTURE: b"\0\x10"}
NO_BOOT = Boot()
IPXE = {**BIOS, Code.USER_CLASS: b"iPXE"}


def reply(options: dict[Code, bytes], boot: Boot = NO_BOOT, server: str = METADATA_IP) -> Message:
    """What a DISCOVER with these options is offered, as it comes out of the wire."""
    message = Message(
        op=1,
        xid=7,
        chaddr=bytes.fromhex(MAC.replace(":", "")).ljust(16, b"\0"),
        options={Code.MESSAGE_TYPE: bytes((Kind.DISCOVER,)), **options},
    )
    lease = Lease(ip=IP, mac=MAC, hostname="h", subnet=SUBNET, boot=boot, server=server)
    found = answer(message, MAC, {MAC: lease}.get)
    assert isinstance(found, Answer)
    return codec.parse(codec.build(found.reply, found.limit))


@pytest.mark.parametrize(
    ("client", "file"),
    [(BIOS, b"undionly.kpxe"), (UEFI, b"ipxe.efi"), (ARM, b"ipxe-arm64.efi"), (IPXE, b"boot.ipxe")],
)
def test_firmware_gets_a_program_by_its_architecture_and_ipxe_a_script(
    client: dict[Code, bytes], file: bytes
) -> None:
    offer = reply(client)
    assert (offer.siaddr, offer.file) == (METADATA_IP, file)
    assert offer.options[Code.BOOT_FILE] == file
    assert offer.options[Code.TFTP_SERVER] == offer.sname == METADATA_IP.encode()


def test_firmware_that_speaks_http_gets_a_url_and_its_class_back() -> None:
    offer = reply(HTTP, server="10.1.0.2")
    assert offer.options[Code.BOOT_FILE] == b"http://10.1.0.2:6969/ipxe.efi"
    assert offer.options[Code.VENDOR_CLASS] == b"HTTPClient"
    assert reply(HTTP, Boot(file="http://x/y.efi")).options[Code.BOOT_FILE] == b"http://x/y.efi"


def test_ipxe_is_told_to_wait_for_no_other_server() -> None:
    assert reply(IPXE).options[Code.IPXE] == b"\xb0\x01\x01"
    assert reply({Code.IPXE: b"\x01"}).file == b"boot.ipxe"


def test_what_a_lease_says_goes_before_what_follows_from_the_architecture() -> None:
    boot = Boot(file="grub.efi", script="http://10.9.9.9/s", server="10.9.9.9")
    offer = reply(UEFI, boot)
    assert (offer.siaddr, offer.file, offer.sname) == ("10.9.9.9", b"grub.efi", b"10.9.9.9")
    assert reply(IPXE, boot).file == b"http://10.9.9.9/s"


def test_a_client_that_does_not_boot_hears_nothing_of_it() -> None:
    for options in ({}, {Code.VENDOR_CLASS: b"udhcp 1.35"}, {Code.PARAMETERS: bytes((1, 3, Code.BOOT_FILE))}):
        offer = reply(options)
        assert (offer.siaddr, offer.file, offer.sname) == ("0.0.0.0", b"", b"")
        assert not {Code.BOOT_FILE, Code.TFTP_SERVER, Code.VENDOR_CLASS} & set(offer.options)


def test_a_loader_that_asks_for_a_file_gets_the_one_of_its_lease() -> None:
    offer = reply({Code.PARAMETERS: bytes((1, 3, Code.BOOT_FILE))}, Boot(file="u-boot.scr"))
    assert offer.file == b"u-boot.scr"


def test_an_architecture_that_nobody_knows_gets_only_what_its_lease_says() -> None:
    unknown = {Code.VENDOR_CLASS: b"PXEClient:Arch:00999", Code.ARCHITECTURE: b"\x03\xe7"}
    assert reply(unknown).file == b""
    assert reply(unknown, Boot(file="x")).file == b"x"


def test_a_name_that_is_too_long_for_its_field_is_in_its_option() -> None:
    name = "http://boot.example/" + "x" * 200
    offer = reply(IPXE, Boot(script=name))
    assert (offer.file, offer.options[Code.BOOT_FILE]) == (b"", name.encode())


def test_a_machine_hears_from_the_address_at_which_it_finds_us() -> None:
    offer = reply(BIOS, server="10.1.0.2")
    assert (offer.server_id, offer.siaddr) == ("10.1.0.2", "10.1.0.2")
