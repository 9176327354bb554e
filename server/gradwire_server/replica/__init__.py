"""The replica: its beginning, its recovery after a restart, its checks and repairs."""
