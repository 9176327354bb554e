"""What goes wrong on Spark, as the driver raises it."""

from gradwire.errors import GradwireError, UsageError


class DataError(UsageError):
    """Data that cannot be trained on: the message names column, row and remedy."""


class WorkerFailedError(GradwireError):
    """A task failed in a way that another attempt would not change.

    The message has the executor's host and what happened there.
    """
