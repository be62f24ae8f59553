"""The DHCP server of a node: one per bridge, with a fixed lease for each VM and nothing for strangers."""
