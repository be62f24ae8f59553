from __future__ import annotations

from ipaddress import IPv6Address

import pytest
from msgspec import structs

from atoll.guestnet.dhcp.answer import Lease
from atoll.guestnet.dhcp6 import codec
from atoll.guestnet.dhcp6.answer import Silence, answer, server_id
from atoll.guestnet.dhcp6.codec import Code, Kind, Message, Option, Status
from atoll.model.network import METADATA_IP6, Subnet

MAC, IP = "52:54:0a:01:00:05", "10.1.0.5"
IP6 = "fd00:1::5054:aff:fe01:5"
SUBNET = Subnet(
    "lan", "10.1.0.0/24", "10.1.0.1", domain="atoll.test", cidr6="fd00:1::/64", gateway6="fd00:1::1"
)
ME = server_id("02:a7:00:00:00:01")
CLIENT: Option = (Code.CLIENT_ID, b"\0\4whoever")
TO_ME: Option = (Code.SERVER_ID, ME)


def ask(kind: Kind, *options: Option, mac: str = MAC, subnet: Subnet = SUBNET) -> Message | Silence:
    lease = Lease(ip=IP, mac=MAC, hostname="h", subnet=subnet)
    reply = answer(Message(kind, b"abc", options), mac, {MAC: lease}.get, ME)
    return codec.parse(codec.build(reply)) if isinstance(reply, Message) else reply


def replied(kind: Kind, *options: Option) -> Message:
    reply = ask(kind, *options)
    assert isinstance(reply, Message), reply
    assert reply.server_id == ME
    assert reply.transaction == b"abc"
    return reply


def want(*addresses: str, number: int = 7) -> Option:
    return codec.association(number, 0, 0, *(codec.address(ip, 0, 0) for ip in addresses))


def lifetimes(message: Message) -> dict[str, int]:
    """Valid lifetimes by address, of the first association."""
    value = message.find(Code.IA_NA) or b""
    inner = codec.parse(b"\7abc" + value[12:]).options  # options inside are written as those outside are
    spans = [int.from_bytes(option[20:24], "big") for code, option in inner if code == Code.ADDRESS]
    return dict(zip(message.associations()[0].addresses, spans, strict=True))


def test_a_guest_is_offered_and_then_given_the_address_of_its_mac() -> None:
    offer = replied(Kind.SOLICIT, CLIENT, want())
    assert (offer.kind, offer.client_id) == (Kind.ADVERTISE, CLIENT[1])
    assert [ia.addresses for ia in offer.associations()] == [(IP6,)]
    given = replied(Kind.REQUEST, CLIENT, TO_ME, want(IP6))
    assert given.kind == Kind.REPLY
    assert lifetimes(given) == {IP6: 48 * 3600}


def test_with_rapid_commit_one_message_does() -> None:
    given = replied(Kind.SOLICIT, CLIENT, want(), (Code.RAPID_COMMIT, b""))
    assert given.kind == Kind.REPLY
    assert given.find(Code.RAPID_COMMIT) == b""
    assert [ia.addresses for ia in given.associations()] == [(IP6,)]


@pytest.mark.parametrize(("kind", "to"), [(Kind.RENEW, [TO_ME]), (Kind.REBIND, [])])
def test_a_renewal_keeps_the_address_and_ends_all_others(kind: Kind, to: list[Option]) -> None:
    assert lifetimes(replied(kind, CLIENT, *to, want("fd00:9::9", IP6))) == {IP6: 48 * 3600, "fd00:9::9": 0}


def test_a_second_association_and_a_prefix_get_nothing() -> None:
    reply = replied(Kind.SOLICIT, CLIENT, want(number=1), want(number=2), (Code.IA_PD, bytes(12)))
    assert [ia.addresses for ia in reply.associations()] == [(IP6,), ()]
    (prefix,) = [value for code, value in reply.options if code == Code.IA_PD]
    assert prefix[16:18] == Status.NO_PREFIX.to_bytes(2, "big")


@pytest.mark.parametrize(
    ("asked", "status"),
    [((IP6,), Status.SUCCESS), (("fd00:9::9",), Status.NOT_ON_LINK), ((), Status.NOT_ON_LINK)],
)
def test_a_guest_that_asks_whether_its_address_still_holds_is_told(
    asked: tuple[str, ...], status: Status
) -> None:
    reply = replied(Kind.CONFIRM, CLIENT, want(*asked))
    assert (reply.find(Code.STATUS) or b"")[:2] == status.to_bytes(2, "big")


@pytest.mark.parametrize("kind", [Kind.RELEASE, Kind.DECLINE])
def test_giving_the_address_back_is_acknowledged_and_changes_nothing(kind: Kind) -> None:
    assert (replied(kind, CLIENT, TO_ME, want(IP6)).find(Code.STATUS) or b"")[:2] == b"\0\0"


def test_who_only_wants_to_know_is_told_the_domain() -> None:
    reply = replied(Kind.INFORMATION_REQUEST)
    assert reply.find(Code.DOMAINS) == b"\5atoll\4test\0"
    assert reply.associations() == ()


def test_a_machine_is_told_that_we_are_its_dns_server_where_its_subnet_names_no_other() -> None:
    assert replied(Kind.INFORMATION_REQUEST).find(Code.DNS) == IPv6Address(METADATA_IP6).packed
    for changes in ({"dns": ("10.1.0.2",)}, {"resolver": False}):
        reply = ask(Kind.INFORMATION_REQUEST, subnet=structs.replace(SUBNET, **changes))
        assert isinstance(reply, Message)
        assert reply.find(Code.DNS) is None


@pytest.mark.parametrize(
    ("kind", "options", "silence"),
    [
        (Kind.SOLICIT, (want(),), Silence.ANONYMOUS),
        (Kind.SOLICIT, (CLIENT, TO_ME), Silence.OTHER_SERVER),
        (Kind.REQUEST, (CLIENT, want()), Silence.OTHER_SERVER),
        (Kind.RENEW, (CLIENT, (Code.SERVER_ID, b"\0\3other"), want()), Silence.OTHER_SERVER),
        (Kind.INFORMATION_REQUEST, ((Code.SERVER_ID, b"\0\3other"),), Silence.OTHER_SERVER),
        (Kind.REPLY, (CLIENT,), Silence.UNKNOWN_KIND),
    ],
)
def test_what_is_not_for_us_gets_no_reply(kind: Kind, options: tuple[Option, ...], silence: Silence) -> None:
    assert ask(kind, *options) is silence


def test_strangers_and_subnets_without_ipv6_get_no_reply() -> None:
    assert ask(Kind.SOLICIT, CLIENT, want(), mac="52:54:00:00:00:99") is Silence.STRANGER
    plain = Subnet("lan", "10.1.0.0/24", "10.1.0.1")
    assert ask(Kind.SOLICIT, CLIENT, want(), subnet=plain) is Silence.NO_IPV6
