"""Readable names for VMs that were given none: an adjective and a noun. Pure: `pick` throws the dice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

_ADJECTIVES = """
amber azure bold brave bright brisk calm clear coral cosy crisp dapper deep dusky eager early easy
fair fleet fresh gentle glad golden grand green happy hardy hazel honest ivory jolly keen kind
lively lucky lunar mellow merry mild misty modest neat noble olive pale patient pearly placid plucky
proud quick quiet rapid rosy ruby salty sandy silver sleek smooth snug solar spry steady sunny swift
tidal tidy vivid warm windy wise witty young zesty
"""
_NOUNS = """
anchor atoll bay beacon bream breeze buoy canoe cape clam cliff cod coral cove crab current delta
dolphin dune eel ferry fjord gannet gull harbour heron island jetty kayak kelp lagoon limpet lobster
manta marlin marsh mussel narwhal oar orca osprey otter oyster pearl pelican perch petrel pier
plover prawn puffin raft ray reef sail salmon sandbar scallop seal shell shoal shore shrimp skate
skerry squid starfish stork surf swan tern tide trawler trout tuna turtle urchin wave whale wharf
wren
"""
ADJECTIVES, NOUNS = _ADJECTIVES.split(), _NOUNS.split()
_TRIES = 64


def readable(taken: Collection[str], pick: Callable[[Sequence[str]], str]) -> str:
    """One that is not taken, such as swift-otter; with a number where luck runs out."""
    for _ in range(_TRIES):
        name = f"{pick(ADJECTIVES)}-{pick(NOUNS)}"
        if name not in taken:
            return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
