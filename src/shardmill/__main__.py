"""`python -m shardmill`: the command line."""

from shardmill.cli import main

main()
