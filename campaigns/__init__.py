"""Campaigns that look for faults: seeded simulations, random kills, damaged files. README.md says how to run each."""
