"""What the engines of array libraries (jax, mlx, tinygrad) share: the worker, and what operators alone say."""
