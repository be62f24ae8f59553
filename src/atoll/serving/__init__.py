"""What every service has: the gate, audit, events, supervised background work, certificates that renew."""
