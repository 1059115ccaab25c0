"""The engine mlx: Apple's MLX, on Metal or, on Linux, on the CPU."""
