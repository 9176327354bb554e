"""The log: accepted updates in one order, and how far each member has them."""
