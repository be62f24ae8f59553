"""An image is replaced under its VMs: each runs the one that it was made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from atoll.images import cpio
from atoll.images.store import ImageStore

if TYPE_CHECKING:
    from tests.host.conftest import Cli


def rebuild(store: ImageStore, scratch: Path) -> str:
    """The appliance with one more file in it, in its place. Its digest."""
    image, made_from = store.get("appliance"), store.origin("appliance")
    old = {name: store.path(image, name) for name in ("kernel", "bzimage", "rootfs.tar")}
    initrd = store.path(image, "initrd").read_bytes()
    initrd += bytes(-len(initrd) % 4) + cpio.archive([cpio.regular_file("release", b"second\n")])
    (scratch / "initrd").write_bytes(initrd)
    added = store.add(
        image.name,
        kinds=image.kinds,
        boot=image.boot,
        files={**old, "initrd": scratch / "initrd"},
        rootfs=image.rootfs,
        description=image.description,
        min_memory_mib=image.min_memory_mib,
        ready=image.ready,
        forkable=image.forkable,
        origin=made_from or "",
    )
    return added.digest


def release(cloud: Cli, name: str) -> str:
    with cloud.shell(name) as shell:
        return shell.run("cat /release")


def test_a_vm_starts_with_the_image_that_it_was_made_of(fresh_cloud: Cli, tmp_path: Path) -> None:
    store = ImageStore(fresh_cloud.directory / "images")
    first = fresh_cloud.create("old")["image_digest"]
    fresh_cloud("vm", "stop", "old")
    second = rebuild(store, tmp_path)
    # Neither another process nor the next agent removes what the VM needs.
    fresh_cloud("down")
    fresh_cloud("up")
    fresh_cloud("vm", "start", "old", "--wait-for", "port:80")
    assert fresh_cloud.show("old")["image_digest"] == first != second
    assert "No such file" in release(fresh_cloud, "old")

    assert fresh_cloud.create("new")["image_digest"] == second
    assert "second" in release(fresh_cloud, "new")

    fresh_cloud.destroy("old")
    fresh_cloud("down")
    fresh_cloud("up")
    assert list((store.root / "appliance").glob(f"{first}*")) == []
    assert fresh_cloud.answers(fresh_cloud.show("new")["ip"])
    fresh_cloud.destroy("new")
