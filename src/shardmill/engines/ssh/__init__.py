"""Workers on other hosts, over SSH. Home is the machine that runs the command. If hosts and home share no folder, home
assigns shards, fetches finished parts and makes the commits.

`on_host` runs on the hosts and does not need asyncssh; the rest runs at home.

Design: docs/design/engines.md
"""
