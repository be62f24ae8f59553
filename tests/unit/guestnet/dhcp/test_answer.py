"""What the DHCP server says to whom, message by message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from atoll.guestnet.dhcp import codec
from atoll.guestnet.dhcp.answer import EVERYONE, SERVER_IP, Answer, Lease, Silence, answer
from atoll.guestnet.dhcp.codec import BROADCAST_FLAG, Code, Kind, Message
from atoll.model.network import MAX_DNS, Subnet

IP, MAC = "10.1.0.5", "52:54:0a:01:00:05"
SUBNET = Subnet(
    id="blue",
    cidr="10.1.0.0/24",
    gateway="10.1.0.1",
    dns=("9.9.9.9", "1.1.1.1"),
    domain="a.example",
    mtu=1450,
)
LEASE = Lease(ip=IP, mac=MAC, hostname="web", subnet=SUBNET)
ROUTES = bytes.fromhex("20 a9fea9fe 00000000  00 0a010001")


def address(ip: str) -> bytes:
    return bytes(map(int, ip.split(".")))


def message(kind: int | None, options: dict[int, bytes] | None = None, **fields: Any) -> Message:
    first = {} if kind is None else {Code.MESSAGE_TYPE: bytes((kind,))}
    return Message(
        **{
            "op": 1,
            "xid": 0xABCD,
            "chaddr": bytes.fromhex(MAC.replace(":", "")).ljust(16, b"\0"),
            "options": {**first, **(options or {})},
            **fields,
        }
    )


def ask(asked: Message, frame_mac: str = MAC, lease: Lease | None = LEASE) -> Answer | Silence:
    return answer(asked, frame_mac, {MAC: lease}.get)


def replied(asked: Message, lease: Lease = LEASE) -> Answer:
    reply = ask(asked, lease=lease)
    assert isinstance(reply, Answer), reply
    return reply


def request(wanted: str | None = None, server: str | None = None, **fields: Any) -> Message:
    options: dict[int, bytes] = {}
    if wanted:
        options[Code.REQUESTED_IP] = address(wanted)
    if server:
        options[Code.SERVER_ID] = address(server)
    return message(Kind.REQUEST, options, **fields)


def test_a_discover_is_offered_the_address_of_the_vm() -> None:
    reply = replied(message(Kind.DISCOVER))
    assert reply.reply.kind is Kind.OFFER
    assert reply.reply.yiaddr == IP
    assert reply.reply.server_id == SERVER_IP
    assert (reply.reply.op, reply.reply.xid) == (2, 0xABCD)
    assert reply.destination == (MAC, IP)
    assert not reply.acknowledged


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(request(IP, SERVER_IP), id="selecting"),
        pytest.param(request(IP), id="init-reboot"),
        pytest.param(request(ciaddr=IP), id="renewing or rebinding"),
        pytest.param(request(server=SERVER_IP, ciaddr=IP), id="renewing with a server id"),
    ],
)
def test_a_request_for_the_right_address_is_acknowledged(asked: Message) -> None:
    reply = replied(asked)
    assert (reply.reply.kind, reply.reply.yiaddr, reply.acknowledged) == (Kind.ACK, IP, True)
    assert reply.reply.ciaddr == asked.ciaddr
    assert reply.destination == (MAC, IP)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(request("10.1.0.6", SERVER_IP), id="selecting"),
        pytest.param(request("10.1.0.6"), id="init-reboot"),
        pytest.param(request(ciaddr="10.1.0.6"), id="renewing"),
        pytest.param(request(IP, ciaddr="10.1.0.6"), id="has one, asks for another"),
    ],
)
def test_a_request_for_a_wrong_address_is_refused_to_all_ips_but_in_a_frame_to_the_guest(
    asked: Message,
) -> None:
    reply = replied(asked)
    assert reply.reply.kind is Kind.NAK
    assert (reply.reply.yiaddr, reply.reply.ciaddr) == ("0.0.0.0", "0.0.0.0")
    assert set(reply.reply.options) == {Code.MESSAGE_TYPE, Code.SERVER_ID, Code.MESSAGE}
    assert reply.destination == (MAC, EVERYONE)
    assert not reply.acknowledged


def test_an_inform_gets_the_options_without_address_and_lease() -> None:
    everything = bytes((1, 3, 6, 51, 58, 59, 121))
    reply = replied(message(Kind.INFORM, {Code.PARAMETERS: everything}, ciaddr=IP))
    assert (reply.reply.kind, reply.reply.yiaddr, reply.reply.ciaddr) == (Kind.ACK, "0.0.0.0", IP)
    assert list(reply.reply.options) == [Code.MESSAGE_TYPE, Code.SERVER_ID, 1, 3, 6, 121]
    assert not reply.acknowledged
    assert replied(message(Kind.INFORM)).destination == (MAC, EVERYONE)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (message(Kind.RELEASE, ciaddr=IP), Silence.RELEASED),
        (message(Kind.DECLINE, {Code.REQUESTED_IP: address(IP)}), Silence.DECLINED),
        (message(Kind.DECLINE, {Code.REQUESTED_IP: address("10.1.0.9")}), Silence.NOT_ITS_ADDRESS),
        (message(Kind.DECLINE), Silence.NOT_ITS_ADDRESS),
        (message(Kind.DECLINE, {Code.SERVER_ID: address("10.1.0.1")}), Silence.OTHER_SERVER),
        (request(IP, "10.1.0.1"), Silence.OTHER_SERVER),
        (request(), Silence.NOTHING_ASKED),
        (message(Kind.INFORM, ciaddr="10.1.0.9"), Silence.NOT_ITS_ADDRESS),
        (message(Kind.OFFER), Silence.UNKNOWN_KIND),
        (message(Kind.ACK), Silence.UNKNOWN_KIND),
        (message(99), Silence.UNKNOWN_KIND),
        (message(None), Silence.UNKNOWN_KIND),
        (message(Kind.DISCOVER, op=2), Silence.NOT_ETHERNET),
        (message(Kind.DISCOVER, htype=6), Silence.NOT_ETHERNET),
        (message(Kind.DISCOVER, hlen=16), Silence.NOT_ETHERNET),
        (message(Kind.DISCOVER, giaddr="10.1.0.1"), Silence.RELAYED),
    ],
)
def test_silence_has_its_reason(asked: Message, why: Silence) -> None:
    assert ask(asked) is why


def test_strangers_and_forgers_get_nothing() -> None:
    assert ask(message(Kind.DISCOVER), lease=None) is Silence.STRANGER
    assert ask(message(Kind.DISCOVER), frame_mac="52:54:0a:01:00:06") is Silence.FORGED


def test_the_broadcast_flag_changes_the_ip_and_never_the_mac() -> None:
    assert replied(message(Kind.DISCOVER, flags=BROADCAST_FLAG)).destination == (MAC, EVERYONE)
    assert replied(request(ciaddr=IP, flags=BROADCAST_FLAG)).destination == (MAC, IP)
    assert replied(message(Kind.DISCOVER, flags=BROADCAST_FLAG)).reply.flags == BROADCAST_FLAG


def test_options_come_in_the_order_asked_and_only_when_known() -> None:
    reply = replied(message(Kind.DISCOVER, {Code.PARAMETERS: bytes((121, 3, 1, 26, 42, 12, 1, 58, 59))}))
    assert dict(reply.reply.options) == {
        Code.MESSAGE_TYPE: b"\x02",
        Code.SERVER_ID: address(SERVER_IP),
        Code.LEASE_TIME: (172800).to_bytes(4, "big"),
        Code.CLASSLESS_ROUTES: ROUTES,
        Code.ROUTER: address("10.1.0.1"),
        Code.SUBNET_MASK: address("255.255.255.0"),
        Code.MTU: (1450).to_bytes(2, "big"),
        Code.HOST_NAME: b"web",
        Code.RENEWAL_TIME: (86400).to_bytes(4, "big"),
        Code.REBINDING_TIME: (151200).to_bytes(4, "big"),
    }
    assert list(reply.reply.options) == [53, 54, 51, 121, 3, 1, 26, 12, 58, 59]


def test_a_client_without_a_list_gets_what_it_needs() -> None:
    options = replied(message(Kind.DISCOVER)).reply.options
    assert options[Code.DNS] == address("9.9.9.9") + address("1.1.1.1")
    assert options[Code.DOMAIN] == b"a.example"
    assert options[Code.BROADCAST] == address("10.1.0.255")
    assert {Code.SUBNET_MASK, Code.ROUTER, Code.CLASSLESS_ROUTES, Code.HOST_NAME, Code.MTU} <= set(options)


def test_an_interface_that_is_no_way_out_gets_an_address_and_no_route() -> None:
    wanted = bytes((Code.SUBNET_MASK, Code.ROUTER, Code.CLASSLESS_ROUTES, Code.DNS, Code.DOMAIN, Code.MTU))
    beside = structs.replace(LEASE, is_default_route=False)
    for asked in (
        message(Kind.DISCOVER, {Code.PARAMETERS: wanted}),
        message(Kind.DISCOVER),
        message(Kind.INFORM, {Code.PARAMETERS: wanted}, ciaddr=IP),
    ):
        told = replied(asked, lease=beside).reply.options
        assert {Code.SUBNET_MASK, Code.DOMAIN, Code.MTU} <= told.keys()
        assert not {Code.ROUTER, Code.CLASSLESS_ROUTES, Code.DNS} & told.keys()
    assert replied(message(Kind.DISCOVER), lease=beside).reply.yiaddr == IP


def test_what_a_subnet_does_not_have_is_left_out() -> None:
    bare = Lease(
        ip=IP,
        mac=MAC,
        hostname="web",
        subnet=Subnet(id="b", cidr="10.1.0.0/24", gateway="10.1.0.1", resolver=False),
        lease_s=60,
    )
    options = replied(message(Kind.DISCOVER, {Code.PARAMETERS: bytes((6, 15, 3))}), lease=bare).reply.options
    assert list(options) == [Code.MESSAGE_TYPE, Code.SERVER_ID, Code.LEASE_TIME, Code.ROUTER]
    assert options[Code.LEASE_TIME] == (60).to_bytes(4, "big")


def test_a_machine_is_told_that_we_are_its_dns_server_where_its_subnet_names_no_other() -> None:
    subnet = Subnet(id="b", cidr="10.1.0.0/24", gateway="10.1.0.1")
    lease = Lease(ip=IP, mac=MAC, hostname="web", subnet=subnet)
    told = replied(message(Kind.DISCOVER), lease).reply.options
    assert (told[Code.DNS], told[Code.DOMAIN]) == (address("169.254.169.254"), b"atoll.internal")
    # One that is no VM finds us elsewhere.
    told = replied(message(Kind.DISCOVER), structs.replace(lease, server="10.1.0.9")).reply.options
    assert told[Code.DNS] == address("10.1.0.9")
    second = structs.replace(lease, is_default_route=False)
    assert Code.DNS not in replied(message(Kind.DISCOVER), second).reply.options


def test_the_client_identifier_goes_back_unless_it_is_absurd() -> None:
    assert replied(message(Kind.DISCOVER, {Code.CLIENT_ID: b"\xff1234"})).reply.client_id == b"\xff1234"
    assert replied(message(Kind.DISCOVER, {Code.CLIENT_ID: b"x" * 65})).reply.client_id is None


@pytest.mark.parametrize(
    ("max_size", "limit"), [(None, 548), (0, 548), (576, 548), (1000, 972), (1500, 1422), (65535, 1422)]
)
def test_a_reply_is_as_long_as_the_client_and_the_link_take(max_size: int | None, limit: int) -> None:
    options = {} if max_size is None else {Code.MAX_SIZE: max_size.to_bytes(2, "big")}
    assert replied(message(Kind.DISCOVER, options)).limit == limit


@given(
    kind=st.integers(0, 9),
    options=st.dictionaries(
        st.sampled_from([50, 54]), st.sampled_from([address(IP), address(SERVER_IP), b"abcd"])
    ),
    parameters=st.binary(max_size=255),
    client_id=st.binary(max_size=80),
    max_size=st.integers(0, 65535),
    flags=st.integers(0, 65535),
    ciaddr=st.sampled_from(["0.0.0.0", IP, "1.2.3.4"]),
)
def test_every_reply_fits_goes_to_the_guest_and_never_names_another_address(
    kind: int,
    options: dict[int, bytes],
    parameters: bytes,
    client_id: bytes,
    max_size: int,
    flags: int,
    ciaddr: str,
) -> None:
    extra = {55: parameters, 57: max_size.to_bytes(2, "big"), 61: client_id}
    long = Lease(
        ip=IP,
        mac=MAC,
        hostname="h" * 63,
        subnet=Subnet(
            id="b",
            cidr="10.1.0.0/24",
            gateway="10.1.0.1",
            dns=("9.9.9.9",) * MAX_DNS,
            domain=".".join(["d" * 49] * 5),
        ),
    )
    reply = ask(message(kind, {**options, **extra}, flags=flags, ciaddr=ciaddr), lease=long)
    if isinstance(reply, Silence):
        return
    data = codec.build(reply.reply, reply.limit)
    arrived = codec.parse(data)
    assert len(data) <= max(548, max_size - 28)
    assert reply.destination[0] == MAC
    assert arrived.yiaddr in ("0.0.0.0", IP)
    assert arrived.server_id == SERVER_IP
    assert arrived.kind is reply.reply.kind
    assert reply.acknowledged == (arrived.kind is Kind.ACK and arrived.yiaddr == IP)
