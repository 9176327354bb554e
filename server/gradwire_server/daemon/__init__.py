"""The process: its command, its sockets, its keys, its metrics, its end."""
