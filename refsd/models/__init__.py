"""The architectures, as prose over refsd.module.Module: one file a family."""
