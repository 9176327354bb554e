"""Where workers find their master by a name: ZooKeeper and SRV records."""
