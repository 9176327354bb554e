"""What a training was like: records of items and workers, as text and DataFrame."""
