from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.machine.docker.config import exec_config, exec_start
from atoll.drivers.machine.docker.parse import (
    MOST_FRAME,
    Frames,
    frame_of,
    is_command_monitor,
    status_of,
)
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


PIECES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8)


@given(PIECES, st.data())
def test_what_a_command_wrote_comes_whole_from_bytes_in_pieces_of_any_size(
    wrote: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(bytes((each, 0, 0, 0)) + len(said).to_bytes(4, "big") + said for each, said in wrote)
    frames, found = Frames(), {1: b"", 2: b""}
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        for number, said in frames.feed(stream[:cut]):
            assert said
            found[number] += said
        stream = stream[cut:]
    assert found == {number: b"".join(said for each, said in wrote if each == number) for number in (1, 2)}


def test_pieces_of_one_stream_that_come_together_are_passed_on_together() -> None:
    out, err = b"\x01\0\0\0\0\0\0\x01", b"\x02\0\0\0\0\0\0\x01"
    assert Frames().feed(out + b"a" + out + b"b" + err + b"c" + out) == [(1, b"ab"), (2, b"c")]


def test_only_monitors_of_commands_are_taken_for_such() -> None:
    container = b"/usr/bin/conmon\0-c\0abc\0-p\0/run/abc/pidfile\0"
    command = b"/usr/bin/conmon\0-c\0abc\0-u\0def\0-p\0/run/abc/def/exec_pid\0"

    assert is_command_monitor(command)
    assert not is_command_monitor(container)
    assert not is_command_monitor(b"/bin/sh\0/tmp/exec_pid\0")
    assert not is_command_monitor(b"")
