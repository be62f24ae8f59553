from __future__ import annotations

import pytest

from atoll.cli.ca import claims_of, file_name
from atoll.cli.main import parser_for
from atoll.errors import Invalid, Malformed
from atoll.identity.claims import Claims, Kind


def claims(*argv: str) -> Claims:
    return claims_of(parser_for(["ca"]).parse_args(["ca", "issue", *argv]))


def test_a_user_has_groups_and_methods():
    assert claims("user", "alice", "--group", "ops", "--group", "dev", "--method", "vm.*") == Claims(
        Kind.USER, "alice", groups=("dev", "ops"), methods=("vm.*",)
    )


def test_a_server_has_addresses_its_name_first():
    assert claims("server", "node1", "--address", "10.0.0.1").names == ("node1", "10.0.0.1")


def test_a_service_has_both():
    found = claims("service", "builder", "--address", "10.0.0.1", "--group", "ops")
    assert (found.names, found.groups) == (("10.0.0.1",), ("ops",))


@pytest.mark.parametrize(
    "argv",
    [
        ["user", "alice", "--address", "10.0.0.1"],
        ["server", "n1", "--group", "ops"],
        ["user", "a b"],
        ["user", "alice", "--group", "a/b"],
    ],
)
def test_what_does_not_fit_its_kind_is_refused(argv):
    with pytest.raises(Invalid):
        claims(*argv)


def test_an_unknown_kind_is_a_usage_error():
    with pytest.raises(Malformed, match="kind 'usr'"):
        claims("usr", "alice")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "ca", "-x", "a\0"])
def test_a_name_that_leads_elsewhere_names_no_file(name):
    with pytest.raises(Invalid, match="name"):
        file_name(name)
