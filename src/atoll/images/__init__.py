"""Images: how the appliance is made, and where a node keeps what it has.

`appliance` builds from `packages` (apt), `kernel`, `elf`, `cpio` (pure) and the sources in `guest/`; `store`
is the directory of images of a node.
"""
