"""`python -m rlprof`."""

from rlprof.cli.main import run

run()
