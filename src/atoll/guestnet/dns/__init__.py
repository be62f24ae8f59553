"""DNS for guests: the names of a node's machines, and all others where the node may ask for them."""
