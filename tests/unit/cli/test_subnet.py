from __future__ import annotations

import argparse

import pytest

from atoll.api.given import ChangeSubnet
from atoll.cli.main import parser_for
from atoll.cli.subnet import pool_going
from atoll.cli.subnet_options import change_of, pool_of, subnet_of
from atoll.errors import Invalid
from atoll.model.network import Address, Subnet, mac_for
from atoll.model.node import Pool


def added(*argv: str) -> tuple[argparse.Namespace, Subnet]:
    options = parser_for(["subnet"]).parse_args(["subnet", "add", *argv])
    return options, subnet_of(options)


def test_the_gateway_of_a_subnet_is_its_first_address_unless_said():
    def subnet(*argv: str) -> Subnet:
        return subnet_of(parser_for(["subnet"]).parse_args(["subnet", "add", *argv]))

    assert subnet("blue", "10.2.0.0/24") == Subnet("blue", "10.2.0.0/24", "10.2.0.1")
    assert subnet("blue", "10.2.0.0/24", "--gateway", "10.2.0.254", "--mtu", "1400").mtu == 1400
    with pytest.raises(Invalid, match="has host bits set"):
        subnet("blue", "10.2.0.7/24")


def test_a_private_subnet_is_asked_for():
    options = parser_for(["subnet"]).parse_args(["subnet", "add", "blue", "10.2.0.0/24", "--private"])
    assert subnet_of(options).private


@pytest.mark.parametrize(
    ("argv", "change"),
    [
        (["--dns", "10.2.0.1", "--dns", "10.2.0.2"], ChangeSubnet(dns=("10.2.0.1", "10.2.0.2"))),
        (["--dns", "none", "--domain", "none"], ChangeSubnet(dns=(), domain="")),
        (["--no-metadata", "--autoconf6"], ChangeSubnet(metadata=False, autoconf6=True)),
        (["--reaches", "back", "--reaches", "10.0.0.0/8"], ChangeSubnet(reaches=("back", "10.0.0.0/8"))),
        (["--reaches", "none"], ChangeSubnet(reaches=())),
        (["--allow-user", "ann"], ChangeSubnet(allowed_users=("ann",), allowed_groups=())),
        (["--allow-everybody"], ChangeSubnet(allowed_users=(), allowed_groups=())),
        (["--gateway", "10.2.0.254"], ChangeSubnet(gateway="10.2.0.254")),
    ],
)
def test_a_subnet_is_changed_in_what_is_named(argv: list[str], change: ChangeSubnet):
    assert change_of(parser_for(["subnet"]).parse_args(["subnet", "change", "blue", *argv])) == change


@pytest.mark.parametrize("argv", [[], ["--allow-everybody", "--allow-group", "ops"]])
def test_a_change_of_nothing_or_to_the_contrary_is_refused(argv: list[str]):
    with pytest.raises(Invalid):
        change_of(parser_for(["subnet"]).parse_args(["subnet", "change", "blue", *argv]))


def test_a_change_of_addresses_alone_changes_nothing_else() -> None:
    words = [
        "subnet",
        "change",
        "blue",
        "--add",
        "10.2.0.9",
        "52:54:00:00:00:09",
        "--remove",
        "10.2.0.1-10.2.0.3",
    ]
    assert change_of(parser_for(["subnet"]).parse_args(words)) is None


def test_the_pool_is_every_address_that_is_nobodys_unless_it_is_said() -> None:
    pool = pool_of(*added("blue", "10.2.0.0/29", "--service-ip", "10.2.0.2"))
    assert [address.ip for address in pool] == ["10.2.0.3", "10.2.0.4", "10.2.0.5", "10.2.0.6"]
    assert len(pool_of(*added("blue", "10.2.0.0/16"))) == 1023
    assert pool_of(*added("blue", "10.2.0.0/24", "--no-pool")) == ()
    named = pool_of(*added("blue", "10.2.0.0/24", "--pool", "10.2.0.9", "52:54:00:00:00:09", "10.2.0.7"))
    assert named == (Address("10.2.0.9", "52:54:00:00:00:09"), Address("10.2.0.7", mac_for("10.2.0.7")))


def test_on_a_bridge_of_others_the_pool_has_to_be_said() -> None:
    on_bridge = ("lan", "10.9.0.0/24", "--bridge", "br0")
    with pytest.raises(Invalid, match=r"other machines may have addresses of 10\.9\.0\.0/24") as refusal:
        pool_of(*added(*on_bridge))
    assert "--pool 10.9.0.100-10.9.0.199" in refusal.value.hint
    assert pool_of(*added(*on_bridge, "--no-pool")) == ()
    assert len(pool_of(*added(*on_bridge, "--pool", "10.9.0.100-10.9.0.109"))) == 10


def test_what_goes_is_named_and_whether_it_will_be_refused() -> None:
    blue = Subnet("blue", "10.2.0.0/24", "10.2.0.1")
    free = (Address("10.2.0.5", mac_for("10.2.0.5")),)
    assert pool_going(Pool(blue, free, 0)) == "blue (10.2.0.0/24): 1 address"
    assert pool_going(Pool(blue, free, 2)) == "blue (10.2.0.0/24): 3 addresses, 2 in use: will be refused"


def test_the_gateway_of_an_ipv6_network_is_its_first_address():
    words = ["subnet", "add", "blue", "10.2.0.0/24", "--cidr6", "fd02::/64", "--service-ip", "10.2.0.2"]
    subnet = subnet_of(parser_for(["subnet"]).parse_args(words))
    assert (subnet.cidr6, subnet.gateway6, subnet.service_ip) == ("fd02::/64", "fd02::1", "10.2.0.2")
    assert subnet.autoconf6
