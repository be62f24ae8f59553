"""The routes of a Hypervisor, bound to its service: one module per noun.

Thin: each handler is a call, and a check of owners.
"""
