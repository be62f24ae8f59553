from __future__ import annotations

import ssl

from hypothesis import given
from hypothesis import strategies as some

from atoll.api.reaching import Addresses, current, show

HOSTS = some.lists(
    some.tuples(some.sampled_from("abcd"), some.integers(1, 3)), min_size=1, max_size=6, unique=True
)


@given(HOSTS, some.data())
def test_the_one_that_answered_is_first_and_none_is_lost(addresses, data):
    known = Addresses(addresses)
    for answered in data.draw(some.lists(some.sampled_from(addresses), max_size=6)):
        known.answered(answered)
        assert known.first == answered == known.in_order()[0]
        assert sorted(known.in_order()) == sorted(addresses)


def test_those_that_did_not_answer_keep_their_order():
    known = Addresses([("a", 1), ("b", 1), ("c", 1)])
    before = known.in_order()
    known.answered(("b", 1))
    assert known.in_order() == (("b", 1), ("a", 1), ("c", 1))
    assert before == (("a", 1), ("b", 1), ("c", 1))  # whoever goes through them is not disturbed


def test_tls_is_a_context_or_what_gives_one():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert current(context) is current(lambda: context) is context


def test_an_ipv6_address_stands_in_brackets():
    assert (show(("fd00::1", 7)), show(("node1", 7))) == ("[fd00::1]:7", "node1:7")
