"""The networks, one file each, written as calls on refsd.module.Module."""
