"""The volumes of VMs and the stores that they are in."""
