"""Frames on a wire: packet sockets, the kernel's filters for them, IPv4 and IPv6 inside Ethernet."""
