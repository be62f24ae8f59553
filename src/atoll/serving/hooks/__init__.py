"""Hooks: commands and web services that are told of VMs that come, change and go."""
