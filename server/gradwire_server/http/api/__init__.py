"""The JSON API of the master: what its page shows, and orders. `openapi.json` describes it."""
