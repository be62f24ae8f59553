"""A create that is under way: how far it has come, and how it is given up. Effects: cancels the task that works on it.

An undone create says why: who gave it up or hung up, or what failed, and how far it had come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from atoll.errors import AtollError, Conflict
from atoll.model.vm import VM


class Making:
    """One VM that is being made, for a user who waits for it."""

    def __init__(self, vm: VM, user: str) -> None:
        self.vm = vm
        self.stage = ""
        """The last one that it has reached."""
        self.why_undone = ""
        self._user = user
        self.is_given_up = False
        self._task: asyncio.Task[object] | None = None

    def resume(self) -> None:
        """Somebody works on it from here on; Conflict when it was given up meanwhile."""
        self._task = asyncio.current_task()
        if self.is_given_up:
            raise self.refusal()

    def pause(self, stage: str) -> None:
        """It has come so far, and waits for its creator to be told."""
        self.stage, self._task = stage, None

    def give_up(self, by: str) -> None:
        """What is being done for it is broken off, and undone. Once it was given up, the first one's words count."""
        if not self.is_given_up:
            self.is_given_up, self.why_undone = True, why_given_up(by, self.stage)
            if self._task is not None:
                self._task.cancel()

    def refusal(self) -> Conflict:
        """What its creator is told, if they still listen."""
        return Conflict(f"VM {self.vm.name}: {self.why_undone}")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Around the work: when that ends early, why it is undone is known before it is."""
        try:
            yield
        except BaseException as error:
            if not self.is_given_up:
                self.why_undone = _why_ended(error, self._user, self.stage)
            raise
        finally:
            self._task = None


def why_given_up(by: str, stage: str) -> str:
    return f"its create was given up by {by}{_so_far(stage)}"


def why_unacknowledged(users: tuple[str, ...]) -> str:
    return f"its creator {users[0]} did not say in time that they were told of it"


def _why_ended(error: BaseException, user: str, stage: str) -> str:
    if isinstance(error, AtollError):
        return f"its create failed{_so_far(stage)}: {error.brief}"
    if isinstance(error, Exception):
        return f"its create failed{_so_far(stage)}: {type(error).__name__}"
    return f"its creator {user} hung up{_so_far(stage)}"


def _so_far(stage: str) -> str:
    return f" when it had come as far as {stage}" if stage else " before it was begun"
