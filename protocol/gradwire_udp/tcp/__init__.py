"""Packets over TCP connections, for networks that block UDP."""
