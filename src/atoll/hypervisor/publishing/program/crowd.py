"""Whose connection goes when there is no room for another. No effects."""

from __future__ import annotations

PER_VM = 1024
"""Connections that one VM has at a time."""


class Member:
    """A connection: to which VM, and from where."""

    def __init__(self, vm: str, source: str) -> None:
        self.vm, self.source = vm, source


class Crowd:
    """All connections, by VM and by where they come from, each of these in the order in which they were last used.

    Whoever is many makes room for whoever is few: a VM that is full, or this process, never turns away the first
    connection of somebody for the thousandth of another.
    """

    def __init__(self, most: int, per_vm: int = PER_VM) -> None:
        self._most, self._per_vm = most, per_vm
        self._by_vm: dict[str, dict[str, dict[Member, None]]] = {}
        self._sizes: dict[str, int] = {}
        self.size = 0

    def admit(self, vm: str, source: str) -> tuple[bool, Member | None]:
        """Whether there is room for one more, and which connection has to go for it."""
        here = self._sizes.get(vm, 0)
        if here >= self._per_vm:
            return self._yielding(vm, source)
        if self.size < self._most:
            return True, None
        largest = max(self._sizes, key=self._sizes.__getitem__)
        if self._sizes[largest] > here + 1:
            return True, self._first_to_go(largest)
        return self._yielding(vm, source)

    def _yielding(self, vm: str, source: str) -> tuple[bool, Member | None]:
        """Among the connections of one VM."""
        first = self._first_to_go(vm)
        sources = self._by_vm.get(vm, {})
        if first is None or len(sources[first.source]) <= len(sources.get(source, ())) + 1:
            return False, None
        return True, first

    def _first_to_go(self, vm: str) -> Member | None:
        """Of whoever has most, the one that was not used for longest."""
        sources = self._by_vm.get(vm)
        if not sources:
            return None
        largest = max(sources.values(), key=len)
        return next(iter(largest))

    def add(self, one: Member) -> None:
        self._by_vm.setdefault(one.vm, {}).setdefault(one.source, {})[one] = None
        self._sizes[one.vm] = self._sizes.get(one.vm, 0) + 1
        self.size += 1

    def touch(self, one: Member) -> None:
        mine = self._by_vm[one.vm][one.source]
        del mine[one]
        mine[one] = None

    def remove(self, one: Member) -> None:
        vm, sources = one.vm, self._by_vm[one.vm]
        del sources[one.source][one]
        if not sources[one.source]:
            del sources[one.source]
        self._sizes[vm] -= 1
        if not self._sizes[vm]:
            del self._sizes[vm], self._by_vm[vm]
        self.size -= 1

    def of(self, vm: str) -> list[Member]:
        return [one for mine in self._by_vm.get(vm, {}).values() for one in mine]
