"""Counter-based randomness: a pure function of (seed, stream, view, item, epoch, block), the same on CPU and GPU.

The generator is Philox 4x32-10. The key is made from the seed and the name of a stream; the counter is the item's id
(64 bits), the epoch and the number of a block. Its 128 bits are read as five draws of 24 bits or two of 53.
There is no state: any item of any epoch is drawn directly, and order, chunks, threads and devices do not change it.

Design: docs/design/augmentation.md
"""

from shardmill.core.random.draws import CHUNK, COARSE, FINE, SLOTS, draw5, draw5_of_one, draw_fine, permute
from shardmill.core.random.maths import exp, log, normal
from shardmill.core.random.philox import PhiloxKey, check_counter, check_ids, make_key, philox, words

__all__ = [
    "CHUNK",
    "COARSE",
    "FINE",
    "SLOTS",
    "PhiloxKey",
    "check_counter",
    "check_ids",
    "draw5",
    "draw5_of_one",
    "draw_fine",
    "exp",
    "log",
    "make_key",
    "normal",
    "permute",
    "philox",
    "words",
]
