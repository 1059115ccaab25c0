"""Ground floor: arrays in, arrays out. Start at kernels/README.md."""
