"""Which AppArmor profile a container gets, by what the kernel and the host have."""

from __future__ import annotations

from atoll.drivers.machine.lxc.apparmor import GENERATED, STOCK, UNCONFINED, choose

LOADED = f"/usr/sbin/chronyd (enforce)\n{STOCK} (enforce)\n{STOCK}-with-nesting (enforce)\n"


def test_a_host_without_apparmor_confines_nobody_by_it_and_says_so() -> None:
    for enabled in ("", "N\n"):
        chosen = choose(enabled, LOADED, has_parser=True)
        assert (chosen.name, chosen.rights) == (UNCONFINED, ())
        assert chosen.meaning.startswith("none: ")


def test_the_profile_that_is_loaded_is_taken_and_needs_no_right_more() -> None:
    for has_parser in (True, False):
        chosen = choose("Y\n", LOADED, has_parser=has_parser)
        assert (chosen.name, chosen.rights) == (STOCK, ())
        assert STOCK in chosen.meaning


def test_a_profile_that_only_complains_or_has_a_longer_name_is_not_the_one() -> None:
    for loaded in (f"{STOCK} (complain)\n", f"{STOCK}-with-nesting (enforce)\n", ""):
        assert choose("Y", loaded, has_parser=True).name == GENERATED


def test_a_profile_is_made_for_each_where_none_is_loaded_and_that_takes_a_right() -> None:
    assert choose("Y", "", has_parser=True).rights == ("mac_admin",)


def test_without_a_profile_and_without_a_way_to_make_one_the_node_says_what_is_missing() -> None:
    chosen = choose("Y", "", has_parser=False)
    assert chosen.name == UNCONFINED
    assert "apparmor_parser" in chosen.meaning
