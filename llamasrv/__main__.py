"""`python -m llamasrv`."""

from llamasrv.cli import main

main()
