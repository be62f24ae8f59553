"""Atoll: one small cloud over all of your machines and clouds."""

__version__ = "0.1.0"
