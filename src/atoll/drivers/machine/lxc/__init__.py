"""Containers with an init of their own, by LXC: config and parse (pure), roots, record, console, driver."""
