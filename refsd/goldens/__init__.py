"""The answers of a store of goldens: estimated, and made."""
