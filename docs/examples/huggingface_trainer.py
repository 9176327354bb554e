"""A small GPT-2, trained by transformers' Trainer on every worker and shared by a callback.

The model is made from its configuration and the text is Python's standard library, byte by byte, so
nothing is downloaded. On one machine::

    gradwire run -n 2 -- python docs/examples/huggingface_trainer.py
"""

import argparse
import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gradwire.cli.demo.text import VOCABULARY, load_text
from gradwire.integrations import stand_alone
from gradwire.integrations.huggingface import GradwireCallback

CONTEXT = 32


class Windows(Dataset):
    """A text in pieces, each to be learnt character by character."""

    def __init__(self, text):
        pieces = len(text) // CONTEXT
        self.pieces = torch.tensor(text[: pieces * CONTEXT], dtype=torch.long).view(pieces, CONTEXT)

    def __len__(self):
        """Return how many pieces there are."""
        return len(self.pieces)

    def __getitem__(self, index):
        """Return what the model takes; it moves the labels by one itself."""
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
arguments = parser.parse_args()
stand_alone()  # or the Trainer would take RANK and WORLD_SIZE for an order to start DDP
rank = int(os.environ.get("GRADWIRE_RANK", "0"))

text, held_out = load_text()
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
)
with tempfile.TemporaryDirectory() as folder, GradwireCallback() as callback:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,  # a place for each worker
            max_steps=arguments.steps,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=2e-3,
            adam_beta1=0.0,
            lr_scheduler_type="constant",
            logging_steps=50,
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            data_seed=rank,  # every worker sees the text in an order of its own
        ),
        train_dataset=Windows(text),
        eval_dataset=Windows(held_out[: 200 * CONTEXT]),
        callbacks=[callback],
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
print(f"replica {callback.session.digest()}, loss {before:.3f} -> {after:.3f}")
