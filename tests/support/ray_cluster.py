"""Sizes of the Ray nodes that tests start."""

RAY_NODE = {"num_cpus": 2, "object_store_memory": 80 << 20}
RAY_HEAD = {**RAY_NODE, "include_dashboard": False}
