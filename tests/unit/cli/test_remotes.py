from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from atoll.cli import remotes
from atoll.cli.context import Context, cloud_dir, find, own_files
from atoll.cli.expiry import how_to_renew
from atoll.cli.remotes import Making, Remote
from atoll.errors import AtollError, Conflict, HostFailure, Invalid, Malformed, NotFound

THERE = Remote(("192.0.2.7:6976", "[2001:db8::7]:443"), "zoe")


def options(**given: str) -> argparse.Namespace:
    return argparse.Namespace(**(dict.fromkeys(("remote", "node", "dir", "cert", "key", "ca")) | given))


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def make(home: dict[str, str], name: str = "prod", *, replace: bool = False, key: bytes = b"key") -> Path:
    with Making(name, replace=replace, environment=home) as made:
        made.write("ca.pem", b"ca")
        made.write("user.key", key)
        made.write("user.pem", b"cert")
        return made.finish(THERE).directory


def test_a_remote_is_kept_for_its_user_alone(home, tmp_path):
    directory = make(home)
    assert directory == tmp_path / ".config" / "atoll" / "remotes" / "prod"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    found = remotes.load("prod", home)
    assert found.addresses == (("192.0.2.7", 6976), ("2001:db8::7", 443))
    assert found.is_whole
    assert remotes.names(home) == ["prod"]


def test_one_that_came_to_nothing_leaves_nothing(home, tmp_path):
    with pytest.raises(RuntimeError), Making("prod", environment=home) as made:
        made.write("user.key", b"key")
        raise RuntimeError
    assert remotes.names(home) == []
    assert [path.name for path in (tmp_path / ".config/atoll/remotes").iterdir()] == [".lock"]


def test_a_remote_is_replaced_only_by_who_says_so_and_only_by_a_whole_one(home):
    directory = make(home)
    with pytest.raises(Conflict, match="there is one already"):
        make(home)
    with pytest.raises(RuntimeError), Making("prod", replace=True, environment=home):
        raise RuntimeError
    assert (directory / "user.key").read_bytes() == b"key"
    make(home, replace=True, key=b"other")
    assert (directory / "user.key").read_bytes() == b"other"
    assert {path.name for path in directory.parent.iterdir()} == {"prod", ".lock"}


def test_one_that_was_about_to_be_replaced_when_its_user_pulled_the_plug_is_found_again(home):
    directory = make(home)
    directory.rename(directory.with_name(".prod.before"))
    (directory.parent / ".prod.new").mkdir()
    assert remotes.load("prod", home).key.read_bytes() == b"key"
    make(home, replace=True, key=b"other")
    assert remotes.load("prod", home).key.read_bytes() == b"other"
    assert {path.name for path in directory.parent.iterdir()} == {"prod", ".lock"}


@pytest.mark.parametrize("name", ["local", "", "..", "a/b", "A", ".hidden", "a" * 64])
def test_a_name_that_cannot_be_one_is_refused(home, name):
    with pytest.raises(Invalid):
        Making(name, environment=home)


def test_what_is_used_is_remembered_until_it_is_removed(home):
    make(home)
    assert remotes.chosen(home) is None
    with pytest.raises(NotFound):
        remotes.use("other", home)
    remotes.use("prod", home)
    assert remotes.chosen(home) == "prod"
    remotes.remove("prod", home)
    assert (remotes.chosen(home), remotes.names(home)) == (None, [])


def test_local_takes_back_what_was_used(home):
    make(home)
    remotes.use("prod", home)
    remotes.use("local", home)
    remotes.use("local", home)
    assert remotes.chosen(home) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"addresses": []}', '{"addresses": ["a b"]}'])
def test_a_record_that_is_not_understood_says_how_to_mend_it(home, content):
    (make(home) / "remote.json").write_text(content)
    with pytest.raises(Malformed) as refusal:
        remotes.load("prod", home)
    assert "atoll remote add --replace prod" in refusal.value.hint


def test_one_that_waits_for_its_certificate_cannot_be_used(home):
    (make(home) / "user.pem").unlink()
    with pytest.raises(Conflict, match="waits for its certificate"):
        find(options(remote="prod"), home)


def test_without_a_home_there_are_no_remotes():
    assert remotes.chosen({}) is None
    with pytest.raises(HostFailure, match="home directory"):
        remotes.load("prod", {})


def test_a_remote_brings_all_that_a_client_needs_and_the_environment_nothing(home):
    directory = make(home)
    elsewhere = {
        "ATOLL_NODE": "n",
        "ATOLL_CERT": "/c",
        "ATOLL_KEY": "/k",
        "ATOLL_CA": "/a",
        "ATOLL_DIR": "/d",
    }
    assert find(options(remote="prod"), home | elsewhere) == Context(
        addresses=(("192.0.2.7", 6976), ("2001:db8::7", 443)),
        ca=directory / "ca.pem",
        cert=directory / "user.pem",
        key=directory / "user.key",
        remote="prod",
    )


def test_an_option_replaces_one_thing_of_a_remote(home):
    directory = make(home)
    found = find(options(remote="prod", node="n:7", cert="/c"), home)
    assert (found.addresses, found.cert, found.key) == ((("n", 7),), Path("/c"), directory / "user.key")
    assert own_files(options(remote="prod", key="/k"), home)[1] == Path("/k")


def test_what_is_about_this_machine_is_refused_for_a_remote():
    with pytest.raises(AtollError, match="cloud on this machine"):
        cloud_dir(options(remote="prod"), {})
    assert cloud_dir(options(remote="local"), {"ATOLL_REMOTE": "prod"}) == Path("/var/lib/atoll")


def test_how_to_renew_the_certificate_of_a_remote_is_said():
    assert how_to_renew(Path("/c"), "prod").endswith("atoll remote add --replace prod")
