"""Workers on other hosts, over SSH. Where hosts and home have no folder in common, home hands out shards and fetches
finished parts; the commits are made at home, and only there.

`agent`, `seats` and `remote` run on the hosts, where asyncssh need not be; the rest runs at home."""
