"""Whatever a caller sends is a command, or refused as one of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.api.hands import STDERR, STDIN, STDOUT, Control, frame, unframe
from atoll.errors import AtollError, Malformed
from atoll.hypervisor.hands.hands import control_of, first_frame
from atoll.model.command import MAX_BYTES, Command

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(["argv", "env", "user", "cwd", "input", "terminal", "timeout_s", "more"])
REQUESTS = st.dictionaries(FIELDS, VALUES, max_size=6) | st.builds(
    lambda words, more: {"argv": words, **more},
    st.lists(st.text(max_size=30), max_size=5),
    st.dictionaries(FIELDS, VALUES, max_size=3),
)


class Caller:
    """One who says one thing."""

    def __init__(self, message: bytes | str) -> None:
        self._message = message

    async def message(self) -> bytes | str:
        return self._message

    async def receive(self) -> bytes:
        raise NotImplementedError

    async def send(self, data: bytes) -> None:
        raise NotImplementedError

    async def tell(self, message: Any) -> None:
        raise NotImplementedError


def first(message: bytes | str) -> Command | None:
    return asyncio.run(first_frame(Caller(message)))


@given(st.text(max_size=200) | REQUESTS.map(json.dumps))
def test_a_first_frame_is_a_sound_command_or_refused(message: str) -> None:
    with contextlib.suppress(AtollError):
        command = first(message)
        assert command is not None
        assert command.argv[0]
        assert sum(map(len, command.argv)) <= MAX_BYTES


def test_whoever_goes_before_saying_anything_runs_nothing() -> None:
    assert first(b"") is None
    with pytest.raises(Malformed, match="must be text"):
        first(b"\x00\x01")


@given(
    st.text(max_size=200)
    | st.dictionaries(st.sampled_from(["resize", "signal", "more"]), VALUES).map(json.dumps)
)
def test_a_control_is_one_or_refused(message: str) -> None:
    with contextlib.suppress(AtollError):
        control = control_of(message)
        assert isinstance(control, Control)
        assert control.signal is None or 1 <= control.signal <= 64


@given(st.binary(max_size=50))
def test_a_binary_frame_is_of_a_stream_that_may_be_written_or_refused(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        stream, rest = unframe(data, (STDIN,))
        assert (stream, frame(stream, rest)) == (STDIN, data)
    for stream in (STDOUT, STDERR):
        assert unframe(frame(stream, data), (STDOUT, STDERR)) == (stream, data)
