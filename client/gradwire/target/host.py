"""`host_feedback`: residual feedback over a vector in the memory of the host."""

from gradwire_codecs import Feedback, LocalFeedback, PartialFeedback, Replica, SharedFeedback
from gradwire_codecs.arrays import Float32Array


def host_feedback(
    vector: Float32Array, replica: Replica, *, portion: float, threads: int
) -> Feedback:
    """Return a feedback with `portion` of the residual, 0 to 1, in the vector itself."""
    if 0.0 < portion < 1.0:
        return PartialFeedback(vector, replica, portion, threads=threads)
    kind = LocalFeedback if portion else SharedFeedback
    return kind(vector, replica, threads=threads)
