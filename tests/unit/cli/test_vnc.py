from __future__ import annotations

import pytest

from atoll.cli.vnc import parse_listen, viewer_argv
from atoll.errors import Invalid

HERE = ("127.0.0.1", 5901)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:5901", "127.0.0.1", 5901),
        ("127.0.0.2:0", "127.0.0.2", 0),
        ("[::1]:5905", "::1", 5905),
        ("localhost:5901", "127.0.0.1", 5901),
    ],
)
def test_any_loopback_address_will_do(text: str, host: str, port: int):
    assert parse_listen(text) == (host, (port,))


def test_by_default_the_first_free_port_for_screens_is_taken():
    host, ports = parse_listen(None)
    assert (host, ports[0]) == HERE
    assert len(ports) > 50


@pytest.mark.parametrize("text", ["0.0.0.0:5901", "10.1.0.5:5901", "[::]:5901", "127.0.0.1:70000"])
def test_others_are_not_let_in(text: str):
    with pytest.raises(Invalid, match="is not on this machine alone"):
        parse_listen(text)


@pytest.mark.parametrize("text", ["", "5901", "127.0.0.1", "host:5901", "127.0.0.1:x"])
def test_what_is_no_address_is_refused(text: str):
    with pytest.raises(Invalid, match="is not ADDRESS:PORT"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("vncviewer", ["vncviewer", "127.0.0.1::5901"]),
        ("vncviewer -Shared 'a b'", ["vncviewer", "-Shared", "a b", "127.0.0.1::5901"]),
        ("remote-viewer vnc://{host}:{port}", ["remote-viewer", "vnc://127.0.0.1:5901"]),
    ],
)
def test_a_viewer_is_told_where_to_look(command: str, argv: list[str]):
    assert viewer_argv(command, HERE) == argv


@pytest.mark.parametrize("command", ["", "  ", "'unfinished"])
def test_a_viewer_that_is_no_command_is_refused(command: str):
    with pytest.raises(Invalid, match="viewer"):
        viewer_argv(command, HERE)
