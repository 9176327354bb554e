"""Every setting of a session, with its default, its limits and its reason."""
