"""Atoll: one small cloud over all of your machines and clouds."""

__version__ = "0.1.0"

RECORD_FORMAT = 2
"""Of what agents keep on disk: see atoll.serving.formats."""
