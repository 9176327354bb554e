"""A worker's membership of a run, sans-IO: it joins, sends, receives, comes back, leaves."""
