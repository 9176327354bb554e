"""Datagrams: many with one system call, as far as the kernel can."""
