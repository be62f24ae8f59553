"""Virtual machines by QEMU: argv (pure), probe (which accelerator), monitor (QMP), driver (the contract)."""
