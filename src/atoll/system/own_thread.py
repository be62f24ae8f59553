"""Work in a short-lived thread of its own: namespaces and groups belong to threads, and the caller's never moves.

Starts a thread, and waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def run(function: Callable[[], T]) -> T:
    """What the function gives. Errors come through."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="own")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
