"""`python -m atoll.cli` is `atoll`."""

from __future__ import annotations

from atoll.cli.main import entry

if __name__ == "__main__":
    entry()
