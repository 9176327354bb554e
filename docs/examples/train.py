"""A training script as it looks with gradwire: a character model on Python's standard library.

Where the master is comes from GRADWIRE_MASTER (or ``master=`` in `join`). On one machine::

    gradwire run -n 2 -- python docs/examples/train.py
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gradwire
from gradwire.cli.demo.text import VOCABULARY, Batches, load_text

CONTEXT = 16

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--workers", type=int, help="begin when so many take part")
arguments = parser.parse_args()

text, _ = load_text()
model = nn.Sequential(
    nn.Embedding(VOCABULARY, 32),
    nn.Flatten(),
    nn.Linear(32 * CONTEXT, 256),
    nn.GELU(),
    nn.Linear(256, VOCABULARY),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with gradwire.join(model, optimizer=optimizer, workers=arguments.workers) as session:  # 1
    print(f"rank {session.rank} of {session.world_size}", flush=True)
    batches = Batches(text, batch=64, context=CONTEXT, seed=session.rank)
    for step in range(1, arguments.steps + 1):
        inputs, targets = batches.next()
        loss = cross_entropy(model(torch.from_numpy(inputs)), torch.from_numpy(targets[:, -1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step()  # 2
        session.log(loss=loss)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

print(f"replica {session.digest()}, {session.stats.updates_applied} updates of others applied")
