from __future__ import annotations

import re

from atoll.cli.doctor import BUILD_TOOLS, DISK_TOOLS, RUN_TOOLS
from doc_pages import DOCS

INSTALLED = re.compile(r"^apt-get install (.*)$", re.MULTILINE)


def packages_on(page: str) -> list[str]:
    (found,) = INSTALLED.findall((DOCS / page).read_text())
    return str(found).split()


def test_the_packages_on_the_page_are_those_of_make_setup():
    (line,) = re.findall(r"^PACKAGES := (.*)$", (DOCS.parent / "Makefile").read_text(), re.MULTILINE)
    assert packages_on("install.md") == line.split()


def test_with_them_doctor_misses_no_tool():
    needed = {*RUN_TOOLS.values(), *DISK_TOOLS.values(), *BUILD_TOOLS.values()}
    # Those that every Debian has.
    assert needed - set(packages_on("install.md")) <= {"apt", "dpkg"}


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text()
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


def test_every_link_of_a_page_leads_somewhere():
    broken = [
        f"{page.name}: {target}"
        for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
