"""A shared libggml, by ctypes in a process of its own."""
