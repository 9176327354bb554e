"""A LightningModule, trained by Lightning's Trainer on every worker and shared by a callback.

One process for each worker, each with one device. On one machine::

    gradwire run -n 2 -- python docs/examples/lightning_module.py
"""

import argparse
import logging

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from gradwire.cli.demo.text import VOCABULARY, Batches, load_text
from gradwire.integrations.lightning import GradwireCallback

CONTEXT = 8


class Characters(lightning.LightningModule):
    """Guesses the next character of Python's standard library."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Embedding(VOCABULARY, 16),
            nn.Flatten(),
            nn.Linear(16 * CONTEXT, 128),
            nn.GELU(),
            nn.Linear(128, VOCABULARY),
        )

    def training_step(self, batch, index):
        """Return the loss."""
        inputs, targets = batch
        return cross_entropy(self.model(inputs), targets[:, -1])

    def validation_step(self, batch, index):
        """Log the loss on what nobody trains on."""
        self.log("loss", self.training_step(batch, index), batch_size=len(batch[0]))

    def configure_optimizers(self):
        """Return the optimizer: the callback gives it to `gradwire.join`."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3, betas=(0.0, 0.99))


class Windows(IterableDataset):
    """Batches without end, others on every worker."""

    def __init__(self, text, batch, seed=None):
        self.text, self.batch, self.seed = text, batch, seed

    def __iter__(self):
        """Begin anew; without a seed, at places of its own."""
        batches = Batches(self.text, batch=self.batch, context=CONTEXT, seed=self.seed)
        while True:
            yield tuple(map(torch.from_numpy, batches.next()))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
arguments = parser.parse_args()
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

text, held_out = load_text()
training = DataLoader(Windows(text, batch=64), batch_size=None)
validation = DataLoader(Windows(held_out, batch=1000, seed=0), batch_size=None)

callback = GradwireCallback()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_steps=arguments.steps,
    val_check_interval=max(arguments.steps // 3, 1),
    limit_val_batches=1,
    callbacks=[callback],
    logger=False,  # or one with a place for each worker
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Characters()
before = trainer.validate(model, validation, verbose=False)[0]["loss"]
trainer.fit(model, training, validation)
after = trainer.validate(model, validation, verbose=False)[0]["loss"]
print(f"replica {callback.session.digest()}, loss {before:.3f} -> {after:.3f}")
