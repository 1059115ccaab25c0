"""Run ggml's CPU backend from a shared libggml, through ctypes in a separate process."""
