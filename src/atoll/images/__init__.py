"""Images: how the appliance is made, where a node keeps what it has, and what images are made of.

`appliance` builds from `packages` (apt), `kernel`, `elf`, `cpio` (pure) and the sources in `guest/`; `store`
is the directory of images of a node. `objects` keeps bytes by their hash, on `shelves`; `cutting` makes contents of
them, and `trees` makes objects of directories and archives, and these of objects.
"""
