from __future__ import annotations

import pytest

from atoll.drivers.machine.docker.config import exec_config, exec_start
from atoll.drivers.machine.docker.parse import MOST_FRAME, frame_of, status_of
from atoll.errors import HostFailure
from atoll.model.command import Command, Size


def test_a_piece_has_a_stream_and_a_size() -> None:
    assert frame_of(b"\x02\0\0\0\0\0\x01\x00") == (2, 256)


@pytest.mark.parametrize(
    "head", [b"\x03" + bytes(7), b"\x01\x01" + bytes(6), b"\x01\0\0\0" + (MOST_FRAME + 1).to_bytes(4, "big")]
)
def test_what_is_no_piece_is_refused(head: bytes) -> None:
    with pytest.raises(HostFailure):
        frame_of(head)


def test_an_engine_that_cannot_run_a_program_means_126_or_127() -> None:
    assert status_of(b"OCI runtime exec failed: stat /x: no such file or directory", 126) == 127
    assert status_of(b"OCI runtime exec failed: permission denied", 126) == 126
    assert status_of(b"OCI runtime exec failed: said the command itself", 3) == 0


def test_a_command_is_asked_for_as_the_engine_takes_it() -> None:
    asked = exec_config(Command(("ls",), {"A": "b"}, "joe", "/tmp", terminal=Size(3, 4)))
    assert (asked["Cmd"], asked["Env"], asked["User"], asked["WorkingDir"]) == (
        ["ls"],
        ["A=b"],
        "joe",
        "/tmp",
    )
    assert (asked["Tty"], asked["ConsoleSize"], asked["AttachStdin"]) == (True, [3, 4], False)
    assert exec_start(Command(("ls",))) == {"Detach": False, "Tty": False}
