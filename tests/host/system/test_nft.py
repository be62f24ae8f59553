"""The real packet filter, in a namespace of our own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from atoll.errors import HostFailure
from atoll.system import libnft, namespaces, nft

NAME = f"xsys{os.getpid()}f"
TABLE = {"family": "inet", "name": "xsys"}


@pytest.fixture
def namespace() -> Iterator[str]:
    namespaces.ensure(NAME)
    yield NAME
    namespaces.delete(NAME)


async def test_a_table_is_made_there_and_only_there(namespace: str) -> None:
    outside = nft.tables()
    await nft.apply([{"add": {"table": TABLE}}], namespace)
    assert nft.tables(namespace) == {("inet", "xsys")}
    assert nft.tables() == outside


async def test_all_or_nothing(namespace: str) -> None:
    with pytest.raises(HostFailure, match=r"namespace .*: .*No such file or directory") as failure:
        await nft.apply([{"add": {"table": TABLE}}, {"delete": {"table": TABLE | {"name": "no"}}}], namespace)
    assert f"ip netns exec {namespace} nft" in failure.value.hint
    assert nft.tables(namespace) == set()


def test_the_blocking_way_does_the_same(namespace: str) -> None:
    nft.apply_blocking([{"add": {"table": TABLE}}], namespace)
    assert nft.tables(namespace) == {("inet", "xsys")}
    nft.apply_blocking([{"delete": {"table": TABLE}}], namespace)
    assert nft.tables(namespace) == set()
    with pytest.raises(HostFailure, match="Unknown object"):
        nft.apply_blocking([{"add": {"nonsense": {}}}], namespace)


def test_in_our_own_namespace_the_library_does_it_and_complains_in_the_same_words(namespace: str) -> None:
    def inside() -> str:
        assert libnft.context() is not None
        asyncio.run(nft.apply([{"add": {"table": TABLE}}]))
        with pytest.raises(HostFailure) as failure:
            asyncio.run(
                nft.apply([{"delete": {"table": TABLE}}, {"delete": {"table": TABLE | {"name": "no"}}}])
            )
        return failure.value.brief

    brief = namespaces.inside(namespace, inside)

    assert brief == "talking to the packet filter: Could not process rule: No such file or directory"
    assert nft.tables(namespace) == {("inet", "xsys")}


def test_a_thread_in_another_namespace_has_a_conversation_of_its_own(namespace: str) -> None:
    outside = nft.tables()
    namespaces.inside(namespace, lambda: asyncio.run(nft.apply([{"add": {"table": TABLE}}])))

    assert libnft.context() is libnft.context()
    assert nft.tables() == outside
