"""One worker's whole membership of a run, without threads."""
