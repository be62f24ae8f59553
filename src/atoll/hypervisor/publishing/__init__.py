"""Ports of guests at addresses of the node: what is published, and the process that carries it."""
