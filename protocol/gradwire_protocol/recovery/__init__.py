"""Records of sent and received packets, loss detection, probe timeouts and pacing."""
