"""An agent as a service of this machine: `atoll node install` and `uninstall`."""
