"""The DHCPv6 server of a node: tells a guest the IPv6 address that follows from its MAC."""
