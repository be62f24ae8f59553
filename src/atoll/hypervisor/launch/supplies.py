"""What machines are made of on this node, in one place. Holds things; does nothing itself."""

from __future__ import annotations

from msgspec import Struct

from atoll.errors import AtollError
from atoll.hypervisor.launch.holds import ImageHolds
from atoll.hypervisor.launch.ids import NodeIds
from atoll.hypervisor.launch.kinds import Kinds
from atoll.images.store import ImageStore
from atoll.model.image import Image
from atoll.model.vm import VM


class Supplies(Struct, frozen=True):
    """Kinds of machine, images, and users to run as."""

    kinds: Kinds
    images: ImageStore
    holds: ImageHolds
    ids: NodeIds

    def is_current(self, vm: VM) -> bool:
        """Whether its image is still the one that VMs are made of."""
        try:
            return self.images.get(vm.image).digest == vm.image_digest
        except AtollError:
            return False

    def ready(self, image_name: str, driver: str) -> Image | None:
        """The image as it is now, if it is held and there are free ids for a machine of it.

        Whoever claims both before its next pause gets them; None: `prepare` first.
        """
        image = self.images.get(image_name)
        self.kinds.driver(driver)  # or it is not on this node
        there = self.holds.has(image) and self.ids.has_free(self.kinds.id_space(driver))
        return image if there else None

    async def prepare(self, image_name: str, driver: str) -> None:
        """Hold the image, and claim ids. Somebody else may have them by the time that this returns."""
        await self.holds.hold(self.images.get(image_name))
        await self.ids.until_free(self.kinds.id_space(driver))
