"""Maps: every item of a result as a point, near the points of items like it."""
