from __future__ import annotations

import pytest

from atoll.api.given import ChangeSubnet
from atoll.cli.main import parser_for
from atoll.cli.node import change_of, confinements, parse_addresses, show_free, subnet_of
from atoll.errors import Invalid
from atoll.model.network import Address, Subnet
from atoll.model.node import DriverInfo


def test_addresses_may_be_single_ranges_and_pairs():
    assert parse_addresses(["10.0.0.255-10.0.1.0", "10.0.0.9", "52:54:00:00:00:01", "10.0.0.8"]) == (
        Address("10.0.0.255", "52:54:0a:00:00:ff"),
        Address("10.0.1.0", "52:54:0a:00:01:00"),
        Address("10.0.0.9", "52:54:00:00:00:01"),
        Address("10.0.0.8", "52:54:0a:00:00:08"),
    )


@pytest.mark.parametrize(
    "words",
    [
        ["10.0.0.300"],
        ["10.0.0.2-10.0.0.1"],
        ["10.0.0.0-10.2.0.0"],
        ["10.0.0.1-"],
        ["52:54:00:00:00:01"],
        ["10.0.0.1-10.0.0.2", "52:54:00:00:00:01"],
        ["10.0.0.1", "52:54:00:00:00:01", "52:54:00:00:00:02"],
        ["10.0.0.1", "53:54:00:00:00:01"],
        ["10.0.0.1", "10.0.0.1"],
    ],
)
def test_other_addresses_are_refused(words):
    with pytest.raises(Invalid):
        parse_addresses(words)


def test_the_gateway_of_a_subnet_is_its_first_address_unless_said():
    def subnet(*argv: str) -> Subnet:
        return subnet_of(parser_for(["node"]).parse_args(["node", "add-subnet", *argv]))

    assert subnet("blue", "10.2.0.0/24") == Subnet("blue", "10.2.0.0/24", "10.2.0.1")
    assert subnet("blue", "10.2.0.0/24", "--gateway", "10.2.0.254", "--mtu", "1400").mtu == 1400
    with pytest.raises(Invalid, match="has host bits set"):
        subnet("blue", "10.2.0.7/24")


def test_a_private_subnet_is_asked_for():
    options = parser_for(["node"]).parse_args(["node", "add-subnet", "blue", "10.2.0.0/24", "--private"])
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
    assert change_of(parser_for(["node"]).parse_args(["node", "change-subnet", "blue", *argv])) == change


@pytest.mark.parametrize("argv", [[], ["--allow-everybody", "--allow-group", "ops"]])
def test_a_change_of_nothing_or_to_the_contrary_is_refused(argv: list[str]):
    with pytest.raises(Invalid):
        change_of(parser_for(["node"]).parse_args(["node", "change-subnet", "blue", *argv]))


def test_confinement_is_told_in_one_line_for_each_way():
    lxc = DriverInfo("lxc", (), confinement={"user": "its own", "seccomp": "on"})
    assert confinements([DriverInfo("sim", ()), lxc]) == [
        ("lxc", "user", "its own"),
        ("lxc", "seccomp", "on"),
    ]


def test_more_that_is_promised_than_there_is_is_said():
    assert show_free(str, 1, 4) == "1 of 4 free"
    assert show_free(str, 0, 4) == "0 of 4 free"
    assert show_free(str, -3, 4) == "none of 4 free, 3 too much promised"
