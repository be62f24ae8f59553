"""A VM runs the image that it was made of, whatever the image of that name is by now."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from atoll.errors import NotFound


def digests(node: Any, name: str = "tiny") -> set[str]:
    return {
        path.name for path in (node.images.root / name).iterdir() if path.is_dir() and "." not in path.name
    }


async def release(node: Any) -> None:
    await node.holds.release_unused(node.service.images_in_use)


def booted(node: Any, vm: Any) -> str:
    """The digest of what its machine is started with."""
    machine = node.machines.bootable(vm)
    assert machine.kernel.exists()
    return str(machine.kernel.parent.name)


async def test_a_stopped_vm_starts_with_the_image_that_it_was_made_of(ann: Any, node: Any) -> None:
    old = await ann.create("old")
    await ann.halt("old")
    newer = node.replace("tiny")
    await node.restart()
    await release(node)

    started = await ann.begin("old")

    assert started.image_digest == old.image_digest == booted(node, old)
    new = await ann.create("new")
    assert new.image_digest == newer.digest == booted(node, new)
    assert digests(node) == {old.image_digest, newer.digest}


async def test_a_replaced_image_goes_with_the_last_vm_that_was_made_of_it(ann: Any, node: Any) -> None:
    old = await ann.create("old")
    newer = node.replace("tiny")
    await release(node)
    assert old.image_digest in digests(node)
    await ann.destroy("old")
    await release(node)
    assert digests(node) == {newer.digest}


async def test_an_image_that_nobody_uses_goes_when_the_agent_starts(node: Any) -> None:
    newer = node.replace("tiny")
    await node.restart()
    assert digests(node) == {newer.digest}


async def test_an_image_that_is_gone_is_said_with_what_to_do(ann: Any, node: Any) -> None:
    vm = await ann.create("web")
    await ann.halt("web")
    node.replace("tiny")
    for path in (node.images.root / "tiny").glob(f"{vm.image_digest}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(NotFound, match=f"image tiny {vm.image_digest[:12]}: it is gone") as gone:
        await ann.begin("web")
    assert "backup" in gone.value.hint
    assert node.service.vms.show("web").state == "failed-to-start"
    await ann.destroy("web")
    assert node.traces() == set()


async def test_while_a_record_cannot_be_read_no_image_is_let_go_of(ann: Any, node: Any) -> None:
    vm = await ann.create("web")
    node.replace("tiny")
    await node.stop()
    path = node.records.directory(vm.ip) / "vm.json"
    whole = path.read_bytes()
    path.write_bytes(b"{")
    await node.start()
    await release(node)
    assert vm.image_digest in digests(node)
    await node.stop()
    path.write_bytes(whole)
    await node.start()
    assert (await ann.reboot("web")).image_digest == vm.image_digest


async def test_a_vm_of_a_replaced_image_is_still_forked_from_its_own_template(
    ann: Any, node: Any, until: Any
) -> None:
    old = await ann.create("old", image="twin")
    await until(lambda: node.templates.ready == 1)
    newer = node.replace("twin")
    assert (await ann.reboot("old")).started_by == "fork"
    new = await ann.create("new", image="twin")
    assert (new.started_by, new.image_digest) == ("cold", newer.digest)
    await until(lambda: node.templates.ready == 2)
    await ann.destroy("old")
    await release(node)
    node.templates._wake.set()
    await until(lambda: len(node.templates) == 1)
    assert digests(node, "twin") == {newer.digest}
    assert old.image_digest != newer.digest
