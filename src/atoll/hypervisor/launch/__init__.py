"""From a VM to a machine that runs: cold, forked from a template, or handed over by the hot pool."""
