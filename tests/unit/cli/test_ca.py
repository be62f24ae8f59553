from __future__ import annotations

from pathlib import Path

import pytest

from atoll.cli.ca import certificate_path, claims_of, file_name, granted, handed_out, limited
from atoll.cli.main import parser_for
from atoll.errors import Invalid, Malformed, NotFound
from atoll.identity.claims import Claims, Kind


def claims(*argv: str) -> Claims:
    return claims_of(parser_for(["ca"]).parse_args(["ca", "issue", *argv]))


def test_a_user_has_groups_and_grants():
    assert claims("user", "alice", "--group", "ops", "--group", "dev", "--grant", "vm.*") == Claims(
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
        ["server", "n1", "--limit", "vm.list"],
        ["service", "n1", "--limit", "vm.list"],
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


def test_patterns_stand_in_one_word_or_in_several():
    found = claims("user", "alice", "--limit", "vm.list vm.show", "--limit", "event.*,node.show")
    assert found.limit == ("event.*", "node.show", "vm.list", "vm.show")
    assert claims("user", "bob", "--grant", "vm.log vm.stop").methods == ("vm.log", "vm.stop")
    assert claims("user", "bob").limit is None


@pytest.mark.parametrize("limit", ["", "  ", "*", "vm", "vm.lst", "vmm.*", "a b c", "health.show"])
def test_a_limit_that_is_empty_or_limits_to_what_there_is_not_is_refused(limit: str):
    with pytest.raises((Invalid, Malformed)) as refusal:
        claims("user", "alice", "--limit", limit)
    assert refusal.value.exit_status == 2
    assert refusal.value.hint


def test_a_method_of_a_limit_that_is_misspelt_gets_the_nearest():
    with pytest.raises(Malformed, match=r"limit 'vm\.lst'") as refusal:
        claims("user", "alice", "--limit", "vm.lst")
    assert refusal.value.hint == "did you mean vm.list?"


def test_the_old_word_is_refused_with_the_new_ones():
    with pytest.raises(Malformed, match="--method") as refusal:
        claims("user", "alice", "--method", "vm.*")
    assert "--grant 'vm.*'" in refusal.value.hint
    assert "--limit" in refusal.value.hint


def test_a_name_is_not_mistaken_for_a_directory_that_is_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice" / "alice.pem").touch()
    assert certificate_path("alice", Path("alice")) == Path("alice/alice.pem")
    assert certificate_path("elsewhere/bob.pem", Path(".")) == Path("elsewhere/bob.pem")
    with pytest.raises(NotFound, match=r"there is no alice/bob\.pem"):
        certificate_path("bob", Path("alice"))


def test_what_is_handed_out_is_said_in_plain_words():
    assert granted(("vm.*",)) == "may call vm.* on everyone's VMs"
    assert granted(("vm.log", "node.drain")) == (
        "may call vm.log on everyone's VMs; may call node.drain as an operator"
    )
    assert "everything" in granted(("*",))
    assert limited(("vm.show", "vm.list")) == "may call vm.list, vm.show and nothing else"
    assert limited(()) == "may call nothing at all"
    assert handed_out(Claims(Kind.USER, "ann")) == [
        "ann may see all VMs, create VMs, and change those that ann owns"
    ]
