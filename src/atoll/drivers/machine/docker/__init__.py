"""Containers by a Docker Engine: config and parse (pure), socket, engine (its API), record, terminal,
driver."""
