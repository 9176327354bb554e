"""The shared parameters as integers, and the digests that show they are the same everywhere."""
