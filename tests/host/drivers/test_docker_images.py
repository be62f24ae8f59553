"""Images that clouds put into a container engine: one for all who need it, gone with the last of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import container_labs
import machine_labs as labs
import private_engine as engine
from atoll.drivers.machine.docker.driver import remove_containers


@pytest.fixture
async def two_clouds(
    tmp_path: Path, container_image: Any, engine_socket: Path
) -> AsyncIterator[tuple[Any, Any]]:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    one, two = (
        container_labs.DockerLab(place, container_image, engine_socket, engine.ask) for place in places
    )
    async with labs.opened(one) as first, labs.opened(two) as second:
        yield first, second


def images(socket: Path) -> list[int]:
    """Of each image of ours, how many refer to it."""
    listed = json.loads(engine.ask(socket, "/images/json"))
    return [len(each["RepoTags"]) for each in listed if "atoll.image" in (each["Labels"] or {})]


async def test_an_image_is_there_once_and_goes_with_the_last_cloud_that_has_it(
    two_clouds: tuple[Any, Any], engine_socket: Path, exits: Any
) -> None:
    for cloud in two_clouds:
        await cloud.driver(exits).start(cloud.machine())
    assert images(engine_socket) == [2]
    one, two = two_clouds
    assert await remove_containers(engine_socket, one.group) == 1
    assert images(engine_socket) == [1]
    driver, again = two.driver(exits), two.machine()
    await driver.discard(again)
    assert images(engine_socket) == [1]
    await driver.start(again)
    await two.booted(again)
    assert await remove_containers(engine_socket, two.group) == 1
    assert images(engine_socket) == []


async def test_an_image_that_somebody_made_a_container_of_stays(
    two_clouds: tuple[Any, Any], engine_socket: Path, exits: Any
) -> None:
    cloud, _ = two_clouds
    await cloud.driver(exits).start(cloud.machine())
    (tag,) = json.loads(engine.ask(engine_socket, "/images/json"))[0]["RepoTags"]
    body = json.dumps({"Image": tag, "Labels": {"atoll.image": ""}}).encode()
    engine.ask(engine_socket, "/containers/create?name=stranger", "POST", body)
    try:
        await remove_containers(engine_socket, cloud.group)
        assert images(engine_socket) == [1]
    finally:
        engine.ask(engine_socket, "/containers/stranger", "DELETE")
        await remove_containers(engine_socket, cloud.group)
    assert images(engine_socket) == []
