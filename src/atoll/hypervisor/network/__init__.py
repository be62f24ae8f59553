"""What a VM is plugged into. `base` is the contract, `bridges` the real one, `sim` needs no host."""
