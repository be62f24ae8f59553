"""How long replies of others are kept, and how many."""

from __future__ import annotations

import dns.message
import pytest
from dns.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.guestnet.dns import cache
from atoll.guestnet.dns.cache import Cache, Key, grow_older, lifetime_s

HEAD = "id 1\nopcode QUERY\nrcode {}\nflags QR RD RA\n;QUESTION\nx.test. IN A"


def key(number: int = 0) -> Key:
    return Key(f"{number}.test.", 1, False, False)


def reply(answer: str = "", authority: str = "", rcode: str = "NOERROR") -> Message:
    sections = [HEAD.format(rcode), ";ANSWER", answer, ";AUTHORITY", authority]
    return dns.message.from_text("\n".join(filter(None, sections)))


SOA = "test. 900 IN SOA ns.test. root.test. 1 2 3 4 60"


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        (reply("x.test. 300 IN CNAME y.test.\ny.test. 20 IN A 10.0.0.1"), 20),
        (reply("x.test. 90000 IN A 10.0.0.1"), cache.LONGEST_S),
        (reply("x.test. 0 IN A 10.0.0.1"), 0),
        (reply(authority=SOA), 60),
        (reply(authority=SOA, rcode="NXDOMAIN"), 60),
        (reply(authority="test. 9000 IN SOA ns.test. root.test. 1 2 3 4 9000"), cache.LONGEST_NEGATIVE_S),
        (reply("x.test. 5 IN CNAME y.test.", authority=SOA, rcode="NXDOMAIN"), 5),
        (reply(), 0),
        (reply("x.test. 300 IN A 10.0.0.1", rcode="SERVFAIL"), 0),
    ],
)
def test_a_reply_is_kept_as_long_as_its_first_record(message: Message, seconds: int) -> None:
    assert lifetime_s(message) == seconds


def test_what_was_kept_is_as_old_as_it_is() -> None:
    message = reply("x.test. 300 IN A 10.0.0.1", authority=SOA)
    grow_older(message, 400)
    assert [rrset.ttl for rrset in (*message.answer, *message.authority)] == [0, 500]


def test_a_reply_is_found_until_it_ends() -> None:
    kept = Cache()
    kept.put(key(), b"reply", 20, 100.0)
    assert kept.get(key(), 119.9) == (b"reply", 19)
    assert kept.get(key(), 120.0) is None
    assert len(kept) == 0


def test_what_is_long_or_good_for_no_time_is_not_kept() -> None:
    kept = Cache()
    kept.put(key(1), bytes(cache.LARGEST + 1), 20, 0)
    kept.put(key(2), b"reply", 0, 0)
    assert len(kept) == 0


@settings(max_examples=10)
@given(st.lists(st.integers(0, 5000), max_size=300))
def test_it_never_holds_more_than_its_limit_and_what_is_used_stays(more: list[int]) -> None:
    kept = Cache()
    for number in [*range(cache.ENTRIES), *more]:
        kept.put(key(number), b"reply", 20, 0)
        kept.get(key(0), 1)
    assert len(kept) <= cache.ENTRIES
    assert kept.get(key(0), 1) is not None
