"""A relay: it stands between workers and a master."""
