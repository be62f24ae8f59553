"""Where objects are kept: in a directory, or in a store of a cloud or in memory (`remote`). `base` is the contract."""
