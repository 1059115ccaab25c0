"""What the engines of array libraries (jax, mlx, tinygrad) share: a worker loop, and composed operations."""
