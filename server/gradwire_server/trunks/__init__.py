"""Relays as their parent sees them: trunks, and the connections of workers that they carry."""
