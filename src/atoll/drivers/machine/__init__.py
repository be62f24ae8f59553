"""Machine drivers: what runs a VM on this node."""
