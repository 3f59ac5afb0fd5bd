"""Studies: what is searched, what each trial tries, what came of the trials.

A trial is a shard of a run. Its parameters depend on the seed, its number and the trials of finished generations alone.
The task `tune` runs trials; steps and commands read them. Optuna is imported here and nowhere else.
"""
