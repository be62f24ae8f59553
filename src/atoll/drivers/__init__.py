"""Ways to run machines: each family has a contract (base), a registry, a `sim`, and members of one shape."""
