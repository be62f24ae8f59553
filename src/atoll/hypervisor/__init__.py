"""The Hypervisor: the agent on a node, which runs VMs through machine drivers.

`service` decides, `http` is thin, `app` is the only wiring.
"""
