"""Admission of peers by handshakes and cookies, and protection of every packet."""
