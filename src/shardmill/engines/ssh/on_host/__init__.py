"""What runs on a host: the agent that answers home, its workers, and a script for a Python without shardmill."""
