"""The demo's model, a small character transformer of about 0.8 million parameters, and its text.

The model is a decoder with learned positions and normalization before each block, as in GPT-2 (A.
Radford et al., "Language models are unsupervised multitask learners", 2019). The text is the source
code of Python's standard library, some ten megabytes.
"""

import sysconfig
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY: Final = 128
"""Characters are ASCII codes; all others become question marks."""

HELD_OUT_EVERY: Final = 20
"""One of this many modules is held out for evaluation."""

CONTEXT: Final = 64

WIDTH: Final = 128

LAYERS: Final = 4

HEADS: Final = 4


def load_text() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the text for training and the modules that are held out, as character codes."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(p for p in library.glob("*.py") if p.is_file())
    packages = ("asyncio", "concurrent", "email", "http", "json", "logging", "unittest", "xml")
    for package in packages:
        modules += sorted((library / package).rglob("*.py"))
    texts = [m.read_text(encoding="utf-8", errors="replace") for m in modules]
    held_out = "".join(texts[::HELD_OUT_EVERY])
    training = "".join(t for i, t in enumerate(texts) if i % HELD_OUT_EVERY)
    return _codes(training), _codes(held_out)


def _codes(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8)


class Batches:
    """Random windows of a text: `batch` at a time, of `context` characters and the next one."""

    def __init__(
        self, codes: npt.NDArray[np.uint8], *, batch: int, context: int, seed: int
    ) -> None:
        self._codes = codes
        self._batch = batch
        self._window = np.arange(context + 1)
        self._random = np.random.default_rng(seed)

    def next(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return inputs and, one character on, targets; both of shape (batch, context)."""
        starts = self._random.integers(0, len(self._codes) - len(self._window), self._batch)
        windows = self._codes[starts[:, None] + self._window].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]


class CharTransformer(nn.Module):
    """Predicts the next character from up to `CONTEXT` characters before it."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.predict = nn.Linear(WIDTH, VOCABULARY)
        for parameter in self.parameters():
            if parameter.ndim == 2 and parameter is not self.positions:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        """Map codes of shape (batch, context) to scores of shape (batch, context, vocabulary)."""
        context = characters.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        x = self.characters(characters) + self.positions[:context]
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        scores: Tensor = self.predict(self.norm(x))
        return scores


def new_model() -> CharTransformer:
    """Return the model with which all workers begin, and the worker alone."""
    torch.manual_seed(0)
    return CharTransformer()


def loss_of(
    model: nn.Module, inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
) -> Tensor:
    """Return the mean cross entropy per character, in nats."""
    scores = model(torch.from_numpy(inputs))
    return functional.cross_entropy(scores.flatten(0, 1), torch.from_numpy(targets).flatten())


@torch.no_grad()
def evaluate(model: nn.Module, held_out: npt.NDArray[np.uint8]) -> float:
    """Return the loss on fixed windows of the held-out text."""
    batches = Batches(held_out, batch=64, context=CONTEXT, seed=0)
    losses = [loss_of(model, *batches.next()).item() for _ in range(12)]
    return sum(losses) / len(losses)
