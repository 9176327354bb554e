"""Single updates: their rate, decoding, vetting, clipping, sums, and the log of the latest."""
