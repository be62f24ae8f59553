"""The VMs of a node: what they are, what is kept of them, and everything that happens to them."""
