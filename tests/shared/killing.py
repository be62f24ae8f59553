"""An agent in this process that is killed: from some write on it writes and removes nothing any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from atoll.errors import HostFailure
from atoll.system import files


@contextmanager
def killed_at_write(nth: int) -> Iterator[None]:
    """While the block runs."""
    write, count = files.write_durably, 0

    def stop(*args: object, **more: object) -> None:
        nonlocal count
        count += 1
        if count >= nth:
            raise HostFailure("killed")
        write(*args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_durably", stop)
        patch.setattr(files, "remove_tree", lambda path, *_: None)
        patch.setattr("atoll.hypervisor.vms.records.Records.discard", lambda self, ip: None)
        yield
