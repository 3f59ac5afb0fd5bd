"""What computes, or speaks to the user, without knowing of runs: errors, devices, draws, ranges, batches, texts.

Every room may import it; it imports none of ours.
"""
