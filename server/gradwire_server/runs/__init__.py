"""The runs of a daemon: several masters behind one set of sockets, and orders to them."""
