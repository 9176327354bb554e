"""Datagrams: many with one system call, if the kernel can do that."""
