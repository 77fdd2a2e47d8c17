"""Samples that are read when a batch is made, by what they are read from: arrays, image files, PyTorch data sets; and
the cache of what was read."""
