"""Single updates: their rate, decoding, vetting, sums, and the log of the latest."""
