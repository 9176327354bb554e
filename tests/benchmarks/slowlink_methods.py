"""The methods that `slowlink` compares, by the names that its workers know them by."""

from typing import Final

ALONE: Final = "alone"
GRADWIRE: Final = "gradwire"
DENSE: Final = "dense"
FP16: Final = "fp16"
POWER_SGD: Final = {"powersgd-1": 1, "powersgd-4": 4}
"""Methods, and the rank of the matrices that they send."""
METHODS: Final = (ALONE, GRADWIRE, DENSE, FP16, *POWER_SGD)

WORKERS: Final = 2
WIDTHS: Final = (784, 3030, 3030, 1000, 10)
"""Of the layers of the model, the input's and the output's included: 14.6 million parameters, the
size that Strom reports."""
