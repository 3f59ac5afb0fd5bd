"""Finding the nearest of many: arithmetic on vectors, below tasks and results, which answer with it."""
