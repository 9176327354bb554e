"""Messages in fragments: cut up, put together again, and handed over once."""
