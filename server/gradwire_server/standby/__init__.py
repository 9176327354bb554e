"""A second master that follows the first one, and takes over when that is lost."""
