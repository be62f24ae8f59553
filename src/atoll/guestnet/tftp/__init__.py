"""The TFTP server of a node: read-only, one per bridge, for machines that boot over the network."""
