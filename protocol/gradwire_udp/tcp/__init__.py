"""Packets over TCP connections, where UDP does not get through."""
