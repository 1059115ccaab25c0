"""Cases as files: `refsd export`."""
