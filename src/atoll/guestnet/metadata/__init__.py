"""The metadata server of a node: one per bridge; tells each VM about itself and nothing about others."""
