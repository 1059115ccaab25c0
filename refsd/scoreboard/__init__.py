"""The scoreboard: what engines, versions and devices pass, as a static site that needs no network."""
