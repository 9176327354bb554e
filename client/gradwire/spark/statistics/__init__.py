"""What a training was like: records of items and workers, as text, DataFrame and HTML page."""
