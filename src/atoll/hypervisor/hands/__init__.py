"""Hands in guests: commands that callers run there."""
