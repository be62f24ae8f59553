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
MAKE, REFUSED = "add table inet xsys\n", "delete table inet no\n"


@pytest.fixture
def namespace() -> Iterator[str]:
    namespaces.ensure(NAME)
    yield NAME
    namespaces.delete(NAME)


def test_a_table_is_made_there_and_only_there(namespace: str) -> None:
    outside = nft.tables()
    nft.run_blocking(MAKE, namespace)
    assert nft.tables(namespace) == {("inet", "xsys")}
    assert nft.tables() == outside


def test_all_or_nothing(namespace: str) -> None:
    with pytest.raises(HostFailure, match=r"namespace .*: .*No such file or directory") as failure:
        nft.run_blocking(MAKE + REFUSED, namespace)
    assert f"ip netns exec {namespace} nft" in failure.value.hint
    assert nft.tables(namespace) == set()


def test_commands_in_json_do_the_same(namespace: str) -> None:
    nft.apply_blocking([{"add": {"table": TABLE}}], namespace)
    assert nft.tables(namespace) == {("inet", "xsys")}
    nft.apply_blocking([{"delete": {"table": TABLE}}], namespace)
    assert nft.tables(namespace) == set()
    with pytest.raises(HostFailure, match="Unknown object"):
        nft.apply_blocking([{"add": {"nonsense": {}}}], namespace)


def test_in_our_own_namespace_the_library_does_it_and_complains_in_the_same_words(namespace: str) -> None:
    def inside() -> str:
        assert libnft.context() is not None
        asyncio.run(nft.run(MAKE))
        with pytest.raises(HostFailure) as failure:
            asyncio.run(nft.run("delete table inet xsys\n" + REFUSED))
        return failure.value.brief

    brief = namespaces.inside(namespace, inside)

    assert brief == "talking to the packet filter: Could not process rule: No such file or directory"
    assert nft.tables(namespace) == {("inet", "xsys")}


def test_a_thread_in_another_namespace_has_a_conversation_of_its_own(namespace: str) -> None:
    outside = nft.tables()
    namespaces.inside(namespace, lambda: asyncio.run(nft.run(MAKE)))

    assert libnft.context() is libnft.context()
    assert nft.tables() == outside


def test_what_is_in_a_table_is_read_back(namespace: str) -> None:
    def inside() -> list[str]:
        asyncio.run(nft.run(MAKE + 'add set inet xsys links { type ifname; elements = { "eth0" }; }\n'))
        listing = asyncio.run(nft.listing("inet", "xsys"))
        (links,) = (entry["set"] for entry in listing if "set" in entry)
        return list(links["elem"])

    assert namespaces.inside(namespace, inside) == ["eth0"]
