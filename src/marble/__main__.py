"""`python -m marble`: the command line of exactly this interpreter."""

from marble.cli import main

main()
