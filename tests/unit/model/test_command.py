from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atoll.api.codec import decode_body
from atoll.errors import Invalid, Malformed
from atoll.model.command import MAX_BYTES, Command, Size


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"argv": ()}, "argv"),
        ({"argv": ("",)}, "argv"),
        ({"argv": ("a",) * 1025}, "argv"),
        ({"argv": ("a\0b",)}, "argv"),
        ({"argv": ("x" * MAX_BYTES,)}, "argv"),
        ({"argv": ("\ud800",)}, "argv"),
        ({"env": {"A B": "1"}}, "env"),
        ({"env": {"": "1"}}, "env"),
        ({"env": {f"A{n}": "" for n in range(513)}}, "env"),
        ({"user": "a:b"}, "user"),
        ({"user": "../x"}, "user"),
        ({"cwd": "tmp"}, "cwd"),
        ({"timeout_s": 0.0}, "timeout_s"),
    ],
)
def test_what_no_guest_could_run_is_refused_by_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        Command(**{"argv": ("true",), **fields})
    assert refusal.value.details["field"] == field


def test_a_command_travels_whole() -> None:
    command = Command(("ls", "-l", "ä b"), {"LANG": "C"}, "joe", "/tmp", True, Size(1, 2), 3.5)
    assert decode_body(Command, msgspec.json.encode(command)) == command


def test_what_stands_in_the_environment_is_in_no_error() -> None:
    with pytest.raises(Malformed) as refusal:
        decode_body(Command, b'{"argv":["a"],"env":{"TOKEN":17}}')
    assert "17" not in refusal.value.brief + str(refusal.value.details)
