"""Packets and frames, byte by byte."""
