"""`python -m refsd`: the command line."""

from refsd.cli import main

main()
