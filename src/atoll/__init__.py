"""Atoll: one small cloud over all of your machines and clouds."""

__version__ = "0.1.0"

RECORD_FORMAT = 1
"""Of what is on disk. A later program reads the records of an earlier one; never the other way round."""
