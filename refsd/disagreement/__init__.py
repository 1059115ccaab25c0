"""Compare two engines with each other and with the reference: which is right, where they differ, and why."""
