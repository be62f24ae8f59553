from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from atoll.cli.context import Context, _unreadable, cloud_dir, find, parse_addresses, tls_of
from atoll.errors import Denied, HostFailure, Invalid, Malformed, Unreachable


def options(**given: str) -> argparse.Namespace:
    return argparse.Namespace(**({"dir": None, "node": None, "cert": None, "key": None, "ca": None} | given))


@pytest.fixture
def cloud(tmp_path: Path) -> Path:
    """A directory as `atoll up` leaves it; its namespace is up."""
    (tmp_path / "client").mkdir()
    (tmp_path / "netns").mkdir()
    (tmp_path / "netns" / "atoll-ab12cd").touch()
    context = {"addresses": ["10.213.0.1:6976", "10.213.0.2"], "namespace": "atoll-ab12cd"}
    (tmp_path / "client" / "context.json").write_text(json.dumps(context))
    return tmp_path


def test_the_context_that_up_left_is_used(cloud):
    assert find(options(dir=str(cloud)), {}, cloud / "netns") == Context(
        addresses=(("10.213.0.1", 6976), ("10.213.0.2", 6976)),
        ca=cloud / "client/ca.pem",
        cert=cloud / "client/user.pem",
        key=cloud / "client/user.key",
        authority=cloud / "pki",
    )


def test_an_option_beats_the_environment_which_beats_the_default(cloud):
    environment = {
        "ATOLL_DIR": str(cloud),
        "ATOLL_NODE": "n1,n2:7",
        "ATOLL_CERT": "/env.pem",
        "ATOLL_KEY": "",
    }
    found = find(options(cert="/option.pem"), environment, cloud / "none")
    assert found.addresses == (("n1", 6976), ("n2", 7))
    assert (found.cert, found.key) == (Path("/option.pem"), cloud / "client/user.key")
    assert find(options(), environment, cloud).cert == Path("/env.pem")
    assert cloud_dir(options(), {}) == Path("/var/lib/atoll")


def test_no_cloud_there_is_unreachable_and_says_how_to_start_one(tmp_path):
    with pytest.raises(Unreachable) as refusal:
        find(options(dir=str(tmp_path)), {})
    assert refusal.value.brief == f"no cloud in {tmp_path}"
    assert refusal.value.hint == f"start it with: atoll up --dir {tmp_path}"


def test_a_cloud_whose_namespace_is_gone_is_not_called(cloud):
    (cloud / "netns" / "atoll-ab12cd").unlink()
    with pytest.raises(Unreachable, match="is not up"):
        find(options(dir=str(cloud)), {}, cloud / "netns")


@pytest.mark.parametrize(
    "content", ["", "{", "{}", "[]", '{"addresses": []}', '{"addresses": ["x"], "namespace": "../etc"}']
)
def test_a_context_that_is_not_understood_is_refused(cloud, content):
    (cloud / "client" / "context.json").write_text(content)
    with pytest.raises((Malformed, Invalid)):
        find(options(dir=str(cloud)), {}, cloud / "netns")


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a", (("a", 6976),)),
        ("a:1", (("a", 1),)),
        ("10.0.0.1:65535, b", (("10.0.0.1", 65535), ("b", 6976))),
        ("[fd00::1]:7", (("fd00::1", 7),)),
        ("[fd00::1]", (("fd00::1", 6976),)),
        ("fd00::1", (("fd00::1", 6976),)),
    ],
)
def test_addresses_have_a_host_and_perhaps_a_port(text, addresses):
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize(
    "text",
    [",", "a,", ":1", "a:", "a:0", "a:65536", "a:x", "a b", "http://a", "[::1", "[::1]x", "a:\u0663"],
)
def test_other_addresses_are_refused(text):
    with pytest.raises(Invalid, match="node"):
        parse_addresses(text)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(13, "Permission denied"), Denied),
        (FileNotFoundError(2, "No such file or directory"), Malformed),
        (OSError(5, "Input/output error"), HostFailure),
    ],
)
def test_a_key_that_cannot_be_read_says_why(error, kind):
    refusal = _unreadable("key /x", error)
    assert type(refusal) is kind
    assert refusal.brief == f"key /x: {error.strerror.lower()}"


def test_what_is_no_certificate_is_refused_by_name(tmp_path):
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text("nonsense")
    with pytest.raises(Malformed, match=f"CA certificate {tmp_path}/ca"):
        tls_of(Context((), tmp_path / "ca", tmp_path / "cert", tmp_path / "key"))
    with pytest.raises(Malformed, match="certificate /none"):
        tls_of(Context((), tmp_path / "ca", Path("/none"), tmp_path / "key"))
