"""What machines are made of on this node, in one place. Holds things; does nothing itself."""

from __future__ import annotations

from msgspec import Struct

from atoll.hypervisor.launch.holds import ImageHolds
from atoll.hypervisor.launch.ids import NodeIds
from atoll.hypervisor.launch.kinds import Kinds
from atoll.images.store import ImageStore
from atoll.model.image import Image


class Supplies(Struct, frozen=True):
    """Kinds of machine, images, and users to run as."""

    kinds: Kinds
    images: ImageStore
    holds: ImageHolds
    ids: NodeIds

    async def for_vm(self, image_name: str, driver: str) -> Image:
        """The image as it is now, held, with free ids for a machine of it: both are there when this returns.

        Without a pause between this and the claim of both nobody else gets them.
        """
        space = self.kinds.id_space(driver)
        while True:
            image = self.images.get(image_name)
            self.kinds.driver(driver)  # or it is not on this node
            if self.holds.has(image) and self.ids.has_free(space):
                return image
            await self.holds.hold(image)
            await self.ids.until_free(space)
