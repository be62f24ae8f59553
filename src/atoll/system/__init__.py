"""The only door to the host: processes, files, namespaces, links, nftables, cgroups, the clock.

Everything above decides; what changes or reads the machine goes through here. Each module is one noun of
the host, and each call may be repeated: making what is there and removing what is gone both succeed.
"""
