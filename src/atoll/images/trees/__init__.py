"""Root file systems on their way: out of directories (`scanning`) and archives (`archives`) into entries and objects,
and from there into directories (`unpacking`) and archives (`tarring`)."""
