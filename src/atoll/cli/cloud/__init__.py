"""A one-node cloud on this machine: one directory, one network namespace, one agent."""
