"""Replicas on a disk: when they are written, by whom, and how a run goes on from one."""
