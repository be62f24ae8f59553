"""The images that this node's machines need, held in the store so that nobody removes them.

An image may be replaced under its name at any time, also by another process: those who made a VM of it before
go on with what they have. One hold for each image that is in use, whatever number of VMs use it: a create writes
one only when it is the first of its image.

Effects: through the image store, in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from atoll.errors import AtollError
from atoll.images.store import ImageStore
from atoll.model.image import Image
from atoll.model.vm import VM
from atoll.system.owners import Owner

log = logging.getLogger(__name__)

CHECK_EVERY_S = 60.0

Used = frozenset[tuple[str, str]]
"""Images by name and digest."""


def images_of(vms: Iterable[VM]) -> Used:
    """What these VMs were made of. Of a damaged one nobody knows."""
    return frozenset((vm.image, vm.image_digest) for vm in vms if vm.image)


class ImageHolds:
    """The holds of one agent."""

    def __init__(self, images: ImageStore, owner: Owner) -> None:
        self._images = images
        self._owner = owner
        self._held: Used = frozenset()
        self._changing = asyncio.Lock()

    def prepare(self, used: Used, *, complete: bool) -> None:
        """At start-up: hold what is in use, and remove from the store what nobody uses. Call it in a thread.

        An image that is gone already is logged: its VMs run on, and cannot be started again. Unless `complete`, more
        may be in use than is known: nothing is let go of.
        """
        for name, digest in sorted(used):
            try:
                self._images.hold(name, digest, self._owner)
                self._held |= {(name, digest)}
            except (AtollError, OSError) as error:
                log.error("%s", error)
        if complete:
            try:
                self._images.tidy(self._owner, used)
            except (AtollError, OSError) as error:
                log.error("letting go of images: %s", error)

    def has(self, image: Image) -> bool:
        return (image.name, image.digest) in self._held

    async def hold(self, image: Image) -> None:
        """From here on it stays. NotFound when it has just been removed."""
        async with self._changing:
            if not self.has(image):
                await asyncio.to_thread(self._images.hold, image.name, image.digest, self._owner)
                self._held |= {(image.name, image.digest)}

    async def release_unused(self, used: Callable[[], Used | None]) -> None:
        """Let go of what nobody here uses any more; the store forgets it unless others do. None: nobody knows."""
        async with self._changing:
            keep = used()
            if keep is None:
                return
            self._held &= keep
            await asyncio.to_thread(self._images.tidy, self._owner, keep)

    async def tend(self, used: Callable[[], Used | None]) -> None:
        """For ever: what no machine uses any more is let go of."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await self.release_unused(used)
            except (AtollError, OSError) as error:
                log.error("letting go of images: %s", error)
