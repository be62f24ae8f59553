"""Consoles, screens and boot logs of VMs."""
