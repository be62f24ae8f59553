"""What questions are answered with."""

from __future__ import annotations

import random

import dns.flags
import dns.message
import dns.name
import pytest
from dns.message import Message
from dns.name import Name
from dns.rcode import Rcode
from hypothesis import given
from hypothesis import strategies as st

from atoll.guestnet.dns.answer import NEGATIVE_TTL_S, TTL_S, answer
from atoll.guestnet.dns.messages import BadQuery, parse, render, udp_limit

WEB = ("10.1.0.5", "fd01::5", "10.2.0.5")


class Fixed:
    """Two networks with one machine, and a domain below one that is nobody's."""

    def zones(self) -> list[Name]:
        texts = ("atoll.internal.", "lan.test.", "a.b.test.", "test.", "0.1.10.in-addr.arpa.", "f.ip6.arpa.")
        return [dns.name.from_text(text) for text in texts]

    def addresses(self, label: str, zone: Name | None) -> tuple[str, ...]:
        if label != "web":
            return ()
        return WEB[:2] if zone == dns.name.from_text("lan.test.") else WEB

    def name_at(self, address: str) -> Name | None:
        known = address in ("10.1.0.5", "f000::5")
        return dns.name.from_text("web.lan.test.") if known else None


def ask(name: str, kind: str = "A", rdclass: str = "IN", **options: int) -> Message | None:
    query = dns.message.make_query(name, kind, rdclass, **options)  # type: ignore[arg-type]
    reply = answer(query, Fixed(), recursion=True)
    if reply is not None:
        assert (reply.id, reply.question) == (query.id, query.question)
        assert reply.flags & dns.flags.QR
    return reply


def got(name: str, kind: str = "A", rdclass: str = "IN", **options: int) -> Message:
    reply = ask(name, kind, rdclass, **options)
    assert reply is not None
    return reply


def records(reply: Message) -> list[str]:
    return [str(one) for rrset in reply.answer for one in rrset]


@pytest.mark.parametrize("name", ["web.", "WEB.", "web.atoll.internal.", "wEb.ATOLL.internal."])
def test_a_machine_has_its_addresses_by_each_of_its_names(name: str) -> None:
    reply = got(name)
    assert records(reply) == ["10.1.0.5", "10.2.0.5"]
    assert reply.answer[0].name.to_text() == name
    assert reply.answer[0].ttl == TTL_S
    assert reply.flags & dns.flags.AA
    assert records(got(name, "AAAA")) == ["fd01::5"]


def test_the_domain_of_a_subnet_chooses() -> None:
    assert records(got("web.lan.test.")) == ["10.1.0.5"]


@pytest.mark.parametrize(
    "name",
    ["5.0.1.10.in-addr.arpa.", "5.0.1.10.IN-ADDR.arpa.", "5." + "0." * 28 + "0.0.f.ip6.arpa."],
)
def test_an_address_has_a_name(name: str) -> None:
    assert records(got(name, "PTR")) == ["web.lan.test."]


def soa_of(reply: Message) -> str:
    (rrset,) = reply.authority
    assert (rrset.ttl, rrset[0].minimum) == (NEGATIVE_TTL_S, NEGATIVE_TTL_S)
    return rrset.name.to_text()


@pytest.mark.parametrize(
    ("name", "kind", "zone"),
    [
        ("web.lan.test.", "MX", "lan.test."),
        ("web.lan.test.", "TYPE65280", "lan.test."),
        ("lan.test.", "A", "lan.test."),
        ("b.test.", "A", "test."),
        ("5.0.1.10.in-addr.arpa.", "A", "0.1.10.in-addr.arpa."),
        ("0.f.ip6.arpa.", "PTR", "f.ip6.arpa."),
    ],
)
def test_a_name_without_such_data_is_told_apart_from_none(name: str, kind: str, zone: str) -> None:
    reply = got(name, kind)
    assert (reply.rcode(), records(reply), soa_of(reply)) == (Rcode.NOERROR, [], zone)


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("db.lan.test.", "lan.test."),
        ("x.web.lan.test.", "lan.test."),
        ("9.0.1.10.in-addr.arpa.", "0.1.10.in-addr.arpa."),
        ("x.0.1.10.in-addr.arpa.", "0.1.10.in-addr.arpa."),
        (r"w\000eb.lan.test.", "lan.test."),
        (r"\195\159.lan.test.", "lan.test."),
    ],
)
@pytest.mark.parametrize("kind", ["A", "PTR", "ANY"])
def test_a_name_of_ours_that_nobody_has_is_nobody_s_elsewhere_either(name: str, zone: str, kind: str) -> None:
    reply = got(name, kind)
    assert (reply.rcode(), soa_of(reply)) == (Rcode.NXDOMAIN, zone)


def test_an_unknown_single_label_is_not_asked_for_elsewhere_nor_kept() -> None:
    for kind in ("A", "AAAA"):
        reply = got("printer.", kind)
        assert (reply.rcode(), reply.authority) == (Rcode.NXDOMAIN, [])
    # What validating resolvers ask of top-level domains.
    assert ask("com.", "DS") is None
    assert ask(".", "NS") is None


@pytest.mark.parametrize(
    "name", ["example.com.", "internal.", "a.internal.", "1.1.10.in-addr.arpa.", "arpa."]
)
def test_other_names_are_not_ours(name: str) -> None:
    assert ask(name, "PTR") is None


def test_the_head_of_a_zone_is_told() -> None:
    assert records(got("lan.test.", "NS")) == ["lan.test."]
    assert records(got("lan.test.", "SOA")) == ["lan.test. nobody.invalid. 1 3600 1200 604800 5"]


@pytest.mark.parametrize("name", ["web.", "web.lan.test.", "lan.test.", "5.0.1.10.in-addr.arpa."])
def test_who_asks_for_everything_is_told_little(name: str) -> None:
    assert records(got(name, "ANY")) == ['"RFC8482" ""']


@pytest.mark.parametrize("name", ["web.lan.test.", "example.com."])
@pytest.mark.parametrize(
    ("kind", "rdclass"), [("A", "CH"), ("A", "ANY"), ("AXFR", "IN"), ("IXFR", "IN"), ("OPT", "IN")]
)
def test_other_classes_and_transfers_are_refused(name: str, kind: str, rdclass: str) -> None:
    assert got(name, kind, rdclass).rcode() == Rcode.REFUSED


def test_a_later_edns_is_told_which_one_we_know() -> None:
    reply = got("web.", use_edns=1)
    assert (reply.rcode(), reply.edns) == (Rcode.BADVERS, 0)


LABELS = st.lists(st.binary(min_size=1, max_size=20), max_size=6)
TAILS = st.sampled_from([b"", b"lan.test", b"atoll.internal", b"0.1.10.in-addr.arpa", b"f.ip6.arpa"])


@given(labels=LABELS, tail=TAILS, kind=st.integers(1, 0xFFFF), payload=st.integers(0, 4096))
def test_any_question_has_a_reply_that_fits_or_is_not_ours(
    labels: list[bytes], tail: bytes, kind: int, payload: int
) -> None:
    name = Name((*labels, *(tail.split(b".") if tail else ()), b""))
    query = dns.message.make_query(name, kind, use_edns=0, payload=payload)
    reply = answer(query, Fixed(), recursion=False)
    if reply is not None:
        limit = udp_limit(query, 1232)
        data = render(reply, limit)
        assert len(data) <= limit
        assert dns.message.from_wire(data).question == query.question
    assert reply is not None or not tail


def test_mutated_packets_bring_a_reply_a_refusal_or_none() -> None:
    pick, replies = random.Random(7), 0
    names = ["web.", "web.lan.test.", "5.0.1.10.in-addr.arpa.", "example.com."]
    for _ in range(5_000):
        data = bytearray(dns.message.make_query(pick.choice(names), pick.choice(("A", "PTR"))).to_wire())
        for _ in range(pick.randrange(4)):
            data[pick.randrange(len(data))] = pick.randrange(256)
        try:
            reply = answer(parse(bytes(data)), Fixed(), recursion=True)
        except BadQuery:
            continue
        if reply is not None:
            replies += 1
            assert len(render(reply, 512)) <= 512
    assert replies > 500
