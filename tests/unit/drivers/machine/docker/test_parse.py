"""What a Docker Engine answers."""

from __future__ import annotations

import msgspec
import pytest

from atoll.drivers.machine.base import Exit
from atoll.drivers.machine.docker import parse
from atoll.errors import HostFailure


@pytest.mark.parametrize(
    ("newest", "oldest", "spoken"),
    [("1.41", "1.12", "1.41"), ("1.52", "1.44", "1.44"), ("1.40", "1.12", "1.40"), ("1.9", "1.2", "1.9")],
)
def test_the_version_to_speak_is_ours_or_the_nearest_that_the_engine_knows(
    newest: str, oldest: str, spoken: str
) -> None:
    assert parse.choose_version("1.41", parse.Version(newest, oldest)) == spoken


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (0, Exit.POWERED_OFF),
        (143, Exit.POWERED_OFF),
        (130, Exit.POWERED_OFF),
        (1, Exit.CRASHED),
        (137, Exit.CRASHED),
        (139, Exit.CRASHED),
    ],
)
def test_a_container_that_leaves_when_asked_has_powered_off(status: int, reason: Exit) -> None:
    assert parse.exit_of(status) is reason


def test_a_container_is_read_from_much_more_than_we_need() -> None:
    answer = b"""{"Id": "4f", "Name": "/x", "State": {"Status": "exited", "Running": false, "Paused": false,
        "OOMKilled": true, "Pid": 0, "ExitCode": 137, "StartedAt": "2026-11-15T20:00:00Z"}, "Mounts": []}"""
    assert msgspec.json.decode(answer, type=parse.Container) == parse.Container(
        "4f", parse.State(status="exited", running=False, pid=0, exit_code=137)
    )


def test_security_options_are_found_by_their_names() -> None:
    info = parse.Info(security_options=("name=seccomp,profile=default", "name=userns"))
    assert (info.has("seccomp"), info.has("userns"), info.has("selinux")) == (True, True, False)
    assert not parse.Info(security_options=None).has("seccomp")


def test_a_refusal_is_told_in_the_words_of_the_engine() -> None:
    assert parse.said(b'{"message":"No such container: x\\n"}') == "No such container: x"
    assert parse.said(b"bad gateway") == "bad gateway"
    assert parse.said(b"") == "it did not say why"


def test_an_import_that_fails_half_way_is_a_failure() -> None:
    parse.check_import(b'{"status":"sha256:12"}\r\n')
    with pytest.raises(HostFailure, match="unexpected EOF"):
        parse.check_import(b'{"status":"Importing"}\r\n{"errorDetail":{},"error":"unexpected EOF"}\r\n')
