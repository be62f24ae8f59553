"""What a hook may be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atoll.errors import AtollError, Invalid
from atoll.serving.hooks.config import parse


def read(*hooks: dict[str, Any]) -> Any:
    return parse(msgspec.json.encode(hooks), "hooks.json")


def test_a_hook_is_a_command_or_a_web_service() -> None:
    command, web = read({"command": ["/bin/tell", "x"]}, {"url": "https://dns.test:8443/x?key=secret"})
    assert (command.name, command.user, command.timeout_s) == ("/bin/tell", "nobody", 10)
    assert web.name == "https://dns.test"
    assert command.id != web.id


@pytest.mark.parametrize(
    "hook",
    [
        {},
        {"command": ["/bin/tell"], "url": "https://dns.test/"},
        {"command": ["tell"]},
        {"url": "http://dns.test/secret"},
        {"url": "https:///secret"},
        {"url": "https://[/secret"},
        {"url": "https://dns.test/", "certificate": "/c"},
        {"url": "https://dns.test/", "timeout_s": 0},
        {"url": "https://dns.test/", "password": "secret"},
    ],
)
def test_anything_else_is_refused_and_no_secret_is_told(hook: dict[str, Any]) -> None:
    with pytest.raises((AtollError, msgspec.MsgspecError)) as caught:
        read(hook)
    assert "secret" not in str(caught.value)


def test_one_hook_is_not_there_twice() -> None:
    with pytest.raises(Invalid, match="twice"):
        read({"command": ["/bin/tell"]}, {"command": ["/bin/tell"], "user": "root"})
