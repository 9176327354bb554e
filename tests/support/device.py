"""Where tests have the vectors of the codec for devices: on a GPU, or on the CPU where none is."""

from typing import Final

import torch

DEVICE: Final = torch.device("cuda" if torch.cuda.is_available() else "cpu")
