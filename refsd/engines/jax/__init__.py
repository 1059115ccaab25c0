"""The engine jax: JAX and XLA, every operation as users jit it."""
