"""The register of user ids of this host: which block of them belongs to which agent. What they are is in plan/ids.

    <register>/<space>-<number>    a block that is taken; the file names its owner

Only root gets near. One process at a time works on it: the directory itself is the lock. A block whose owner is
gone can be taken over, once nothing runs under its ids any more. The register goes with its last block.

Effects: files below the register; looks at the processes of the host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from atoll.errors import AtollError, NoCapacity
from atoll.plan.ids import LAYOUT, Block, Space, block_at, block_named
from atoll.system import files, steps
from atoll.system.directory_lock import alone_in
from atoll.system.failures import failing
from atoll.system.owners import Owner, is_gone

DEFAULT = Path("/var/lib/atoll-ids")
_OWNER_LIMIT = 8192


class Register:
    """The register as one agent sees it. Every method may wait for others, and may be called again."""

    def __init__(self, root: Path, owner: Owner) -> None:
        self._root = root
        self._owner = owner

    def blocks(self) -> frozenset[Block]:
        """Those that are ours."""
        with self._alone():
            return frozenset(block for block in self._taken() if self._holder(block) == self._owner)

    def claim(self, space: Space) -> Block:
        """One more block: the lowest that nobody has. It is ours for good when this returns."""
        with self._alone():
            busy = _busy_blocks()
            taken = self._taken()
            for number in range(LAYOUT[space].blocks):
                block = Block(space, number)
                if block not in busy and (block not in taken or self._is_abandoned(block)):
                    self._write(block)
                    return block
        raise NoCapacity(
            f"claiming {space} for machines in {self._root}: all blocks are taken",
            hint="destroy clouds of this host that are not used any more: atoll down --destroy",
        )

    def claim_these(self, block: Block) -> bool:
        """This very block, unless another agent has it. Whether it is ours now."""
        with self._alone():
            if block in self._taken() and not self._is_abandoned(block):
                return self._holder(block) == self._owner
            self._write(block)
            return True

    def give_back(self, *blocks: Block) -> None:
        """Others may have them from now on. Not ours is fine."""
        with self._alone():
            for block in blocks:
                if self._holder(block) == self._owner:
                    self._path(block).unlink()
                    steps.step("ids.given-back")
            files.sync_dir(self._root)

    def give_back_all(self) -> None:
        """Leave nothing of ours, nor of agents that are gone, and no register that nobody uses."""
        if self._root.is_dir():
            self.give_back(*self.blocks())
            with self._alone(), contextlib.suppress(OSError):
                busy = _busy_blocks()
                for block in self._taken() - busy:
                    if self._is_abandoned(block):
                        self._path(block).unlink()
                self._root.rmdir()

    def _write(self, block: Block) -> None:
        path = self._path(block)
        with failing(f"claiming user ids in {self._root}"):
            path.unlink(missing_ok=True)  # an owner's that is gone, or one whose claim was cut short
            with files.new_file(path) as file:
                steps.step("ids.begun")
                file.write(msgspec.json.encode(self._owner))
                file.flush()
                os.fsync(file.fileno())
            files.sync_dir(self._root)
        steps.step("ids.claimed")

    def _taken(self) -> frozenset[Block]:
        return frozenset(filter(None, (block_named(path.name) for path in self._root.iterdir())))

    def _holder(self, block: Block) -> Owner | None:
        """Who has it; None when nobody has, or its claim was cut short."""
        try:
            text = files.read_limited(self._path(block), _OWNER_LIMIT)
            return msgspec.json.decode(text, type=Owner)
        except (FileNotFoundError, msgspec.MsgspecError, AtollError):
            return None

    def _is_abandoned(self, block: Block) -> bool:
        holder = self._holder(block)
        return holder is None or is_gone(holder)

    def _path(self, block: Block) -> Path:
        return self._root / block.name

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with alone_in(self._root):
            yield


def _busy_blocks() -> frozenset[Block]:
    """Those that something on this host runs as, whoever has them."""
    return frozenset(filter(None, map(block_at, running_ids())))


def running_ids() -> frozenset[int]:
    """The users that processes of this host run as just now."""
    found: set[int] = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has just gone
            lines = status.read_text(errors="replace").splitlines()
            found.update(int(word) for line in lines if line.startswith("Uid:") for word in line.split()[1:])
    return frozenset(found)
