"""What a worker exchanges with the master besides updates, each a part of `Worker`."""
