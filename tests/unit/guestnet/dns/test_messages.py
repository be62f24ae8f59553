"""DNS questions as bytes: what is taken, what is refused, and that nothing else can come of any bytes."""

from __future__ import annotations

import random

import dns.edns
import dns.flags
import dns.message
import dns.rrset
import pytest
from dns.message import Message
from dns.rcode import Rcode
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.guestnet.dns.messages import (
    LARGEST_UDP,
    SMALLEST_UDP,
    BadQuery,
    parse,
    render,
    respond,
    udp_limit,
)

PACKETS = 20_000


def question(name: str = "web.atoll.internal.", **options: object) -> bytes:
    return dns.message.make_query(name, "A", **options).to_wire()  # type: ignore[arg-type]


def refusal(data: bytes) -> Message | None:
    with pytest.raises(BadQuery) as caught:
        parse(data)
    return dns.message.from_wire(caught.value.reply) if caught.value.reply else None


def test_a_question_is_read_with_its_letters_and_its_options() -> None:
    query = parse(question("WeB.Atoll.internal.", use_edns=0, payload=4096, want_dnssec=True))
    assert query.question[0].name.to_text() == "WeB.Atoll.internal."
    assert (query.payload, query.edns) == (4096, 0)


@pytest.mark.parametrize("size", range(12))
def test_less_than_a_header_is_not_answered(size: int) -> None:
    assert refusal(bytes(size)) is None


def test_an_answer_is_not_answered() -> None:
    assert refusal(respond(parse(question())).to_wire()) is None


@pytest.mark.parametrize("opcode", range(1, 16))
def test_what_is_no_question_is_not_implemented(opcode: int) -> None:
    data = bytearray(question())
    data[2] = data[2] & 0x87 | opcode << 3
    reply = refusal(bytes(data))
    assert reply is not None
    assert (reply.rcode(), reply.opcode(), bytes(data[:2])) == (
        Rcode.NOTIMP,
        opcode,
        reply.id.to_bytes(2, "big"),
    )


def with_count(at: int, count: int) -> bytes:
    data = bytearray(question())
    data[at : at + 2] = count.to_bytes(2, "big")
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        with_count(4, 0),
        with_count(4, 2),
        with_count(4, 0xFFFF),
        with_count(6, 1),
        with_count(8, 1),
        with_count(10, 2),
        question()[:-1],
        question() + b"\0",
        question()[:12] + b"\xc0\x0c\0\1\0\1",
        question()[:12] + b"\x40a\0\0\1\0\1",
        question() + bytes(1500),
    ],
    ids=[
        *("no question", "two questions", "65535 questions", "an answer in it", "an authority in it"),
        *("two additional records", "cut short", "too long", "a name that is itself", "an unknown label"),
        "huge",
    ],
)
def test_a_malformed_question_is_a_format_error(data: bytes) -> None:
    reply = refusal(data)
    assert reply is not None
    assert (reply.rcode(), reply.id, len(reply.question)) == (
        Rcode.FORMERR,
        int.from_bytes(data[:2], "big"),
        0,
    )


def long_reply(query: Message) -> Message:
    reply = respond(query)
    ips = [f"10.0.{number // 200}.{number % 200}" for number in range(400)]
    reply.answer.append(dns.rrset.from_text_list(query.question[0].name, 10, "IN", "A", ips))
    return reply


@given(payload=st.integers(0, 0xFFFF), limit=st.integers(528, LARGEST_UDP), edns=st.booleans())
def test_a_reply_is_never_longer_than_it_may_be_and_says_when_it_is_cut(
    payload: int, limit: int, edns: bool
) -> None:
    query = parse(question(use_edns=0, payload=payload) if edns else question())
    allowed = max(SMALLEST_UDP, min(payload if edns else SMALLEST_UDP, limit))
    assert udp_limit(query, limit) == allowed
    data = render(long_reply(query), allowed)
    assert len(data) <= allowed
    reply = dns.message.from_wire(data)
    assert reply.flags & dns.flags.TC
    assert (reply.id, reply.question, reply.edns >= 0) == (query.id, query.question, edns)


def test_a_reply_that_fits_is_whole_and_in_its_order() -> None:
    query = parse(question(use_edns=0, payload=512))
    data = render(long_reply(query), 65535)
    (rrset,) = dns.message.from_wire(data).answer
    assert [str(one) for one in rrset][:3] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    assert not dns.message.from_wire(data).flags & dns.flags.TC


def mutated(pick: random.Random) -> bytes:
    name = ".".join("a" * pick.randrange(1, 20) for _ in range(pick.randrange(1, 9)))
    option = dns.edns.GenericOption(pick.randrange(20), pick.randbytes(pick.randrange(20)))
    edns = pick.choice((None, 0, 0, 1))
    options = [option] if edns is not None and pick.random() < 0.7 else None
    kind = pick.choice(("A", "PTR", "OPT", "TYPE65280"))
    query = dns.message.make_query(name, kind, use_edns=edns, options=options)
    data = bytearray(query.to_wire())
    for _ in range(pick.randrange(4)):
        data[pick.randrange(len(data))] = pick.choice((0, 1, 41, 63, 0xC0, 250, 255, pick.randrange(256)))
    if pick.random() < 0.2:
        del data[pick.randrange(len(data)) :]
    if pick.random() < 0.1:
        data += pick.randbytes(pick.randrange(60))
    return bytes(data)


def test_no_bytes_bring_anything_but_a_question_or_a_refusal() -> None:
    pick, taken = random.Random(4), 0
    for number in range(PACKETS):
        data = pick.randbytes(pick.randrange(80)) if number % 4 == 0 else mutated(pick)
        try:
            query = parse(data)
        except BadQuery as error:
            assert len(error.reply) in (0, 12)
        else:
            taken += 1
            assert len(render(respond(query, Rcode.REFUSED), SMALLEST_UDP)) <= SMALLEST_UDP
    # The fuzz reached both ends, or it proves little.
    assert PACKETS / 10 < taken < PACKETS * 9 / 10


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_bytes_that_hypothesis_finds_do_not_either(data: bytes) -> None:
    for whole in (data, data[:2] + b"\x01\0\0\1\0\0\0\0\0\1" + data):
        try:
            parse(whole)
        except BadQuery as error:
            assert len(error.reply) in (0, 12)
