"""The work behind commands."""
