"""The search for the cause of a wrong answer."""
