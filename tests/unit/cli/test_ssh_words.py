"""What ssh is told, and what its complaints mean."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from atoll.api.ssh import SshAccess
from atoll.cli.ssh_words import SshFiles, config, explained, known_hosts
from atoll.cli.vm_ssh import check_user
from atoll.errors import AtollError, Conflict, Denied, Invalid, Unreachable

FILES = SshFiles(Path("/tmp/a b%c"))


def test_nothing_but_this_login_counts() -> None:
    text = config("web", "www", "i-1", FILES, ["atoll", "vm", "forward", "web", "--stdio", "22"])
    lines = dict(line.strip().split(" ", 1) for line in text.splitlines())
    assert (lines["Host"], lines["HostKeyAlias"], lines["StrictHostKeyChecking"]) == ("web", "i-1", "yes")
    assert lines["IdentityFile"] == '"/tmp/a b%%c/key"'
    assert (lines["IdentitiesOnly"], lines["IdentityAgent"]) == ("yes", "none")
    assert lines["ProxyCommand"] == "atoll vm forward web --stdio 22 2>'/tmp/a b%%c/way'"
    assert all("-cert-" in one for one in lines["HostKeyAlgorithms"].split(","))


def test_only_this_ca_vouches_and_only_for_this_instance() -> None:
    access = SshAccess("", datetime(2026, 1, 1, tzinfo=UTC), "i-1", "ssh-ed25519 AAAA atoll\n")
    assert known_hosts(access) == "@cert-authority i-1 ssh-ed25519 AAAA atoll\n"


@pytest.mark.parametrize(
    ("log", "way", "kind", "words"),
    [
        ("www@web: Permission denied (publickey).\r\n", "", Denied, "does not let www in"),
        ("Host key verification failed.\r\n", "", Conflict, "does not prove to be its own"),
        (
            "Unable to negotiate with UNKNOWN port 65535: no matching host key type found.",
            "",
            Conflict,
            "prove",
        ),
        ("kex_exchange_identification: Connection closed", "", Unreachable, "the connection to VM web ended"),
        (
            "Connection closed",
            "atoll: port 22 of VM web: refused\n  hint: see it\n",
            Unreachable,
            "port 22 of VM",
        ),
        ("something else", "", AtollError, "something else"),
    ],
)
def test_a_complaint_says_what_it_means_and_what_there_is_instead(
    log: str, way: str, kind: type[AtollError], words: str
) -> None:
    error = explained("web", "www", log, way)
    assert type(error) is kind
    assert words in error.brief
    assert "atoll vm shell web" in error.hint


def test_where_nobody_complains_there_was_a_session() -> None:
    assert explained("web", "root", "\n", "") is None
    assert explained("web", "root", "Connection to web closed.\r\n", "") is None


@pytest.mark.parametrize("user", ["", "-oProxyCommand=x", "a b", "a;b", "$HOME", 'a"b', "x@y"])
def test_what_ssh_would_read_otherwise_is_no_user(user: str) -> None:
    with pytest.raises(Invalid):
        check_user(user)


def test_users_of_guests_are() -> None:
    assert [check_user(user) for user in ("root", "www-data", "_apt", "ann.b")]
