"""`host_feedback`: the feedback over an array."""

from gradwire.settings.training import Feedback as FeedbackSetting
from gradwire_codecs import Feedback, LocalFeedback, Replica, SharedFeedback
from gradwire_codecs.arrays import Float32Array


def host_feedback(vector: Float32Array, replica: Replica, *, kind: FeedbackSetting) -> Feedback:
    """Return a feedback over the vector, of the kind that the setting `feedback` says."""
    found = LocalFeedback if kind == "local" else SharedFeedback
    return found(vector, replica)
