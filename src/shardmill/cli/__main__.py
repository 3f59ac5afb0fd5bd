"""`python -m shardmill.cli`, the same as `python -m shardmill`."""

from shardmill.cli import main

main()
