"""`python -m wingbar`."""

from wingbar.cli import main

main()
