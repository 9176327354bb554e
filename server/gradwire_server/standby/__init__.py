"""A second master that follows the first one, and takes over where that is lost."""
