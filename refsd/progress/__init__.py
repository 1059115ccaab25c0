"""Progress on stderr: compiling, steps, taps."""
