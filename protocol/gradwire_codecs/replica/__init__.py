"""The shared parameters as integers, and digests that show whether replicas are equal."""
