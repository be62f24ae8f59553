from __future__ import annotations

import pytest

from atoll.cli.cloud.layout import Cloud, subnet_for
from atoll.cli.cloud.listen import MAX_LISTEN, parsed, reached_at
from atoll.errors import Invalid


def test_addresses_are_kept_with_their_port_and_each_once():
    given = ["192.0.2.7", "192.0.2.7:6976", "192.0.2.7:443", "2001:DB8::7", "[2001:db8::7]:443"]
    assert parsed(given) == (
        "192.0.2.7:6976",
        "192.0.2.7:443",
        "[2001:db8::7]:6976",
        "[2001:db8::7]:443",
    )
    assert parsed(()) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.org",
        "192.0.2.7:0",
        "192.0.2.7:70000",
        "[::1",
        "192.0.2.300",
        "1:2",
        "fe80::1",
        "fe80::1%eth0",
    ],
)
def test_what_is_not_an_address_is_refused(text):
    with pytest.raises(Invalid, match="listen"):
        parsed([text])


def test_a_host_has_only_so_many_addresses_for_others():
    with pytest.raises(Invalid, match=f"at most {MAX_LISTEN}"):
        parsed([f"192.0.2.{last}" for last in range(MAX_LISTEN + 1)])


def test_a_cloud_is_reached_where_it_was_told_to_listen():
    assert reached_at(("192.0.2.7:443", "[2001:db8::7]:6976")) == (("192.0.2.7", 443), ("2001:db8::7", 6976))


def test_a_cloud_of_before_listens_nowhere():
    assert Cloud("ab12cd", 0, subnet_for("10.213.0.0/24")).listen == ()
