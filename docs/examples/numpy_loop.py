"""A training loop without torch: numpy, gradients by hand, characters of Python's standard library.

The parameters are one float32 array; the tensors are views of it, so whatever changes them changes
what is shared. On one machine::

    gradwire run -n 2 -- python docs/examples/numpy_loop.py
"""

import argparse

import numpy as np

import gradwire
from gradwire.cli.demo.text import VOCABULARY, Batches, load_text

CONTEXT, WIDTH, HIDDEN = 8, 16, 128
SHAPES = {
    "embedding": (VOCABULARY, WIDTH),
    "hidden": (CONTEXT * WIDTH, HIDDEN),
    "hidden_bias": (HIDDEN,),
    "output": (HIDDEN, VOCABULARY),
    "output_bias": (VOCABULARY,),
}


def views_of(vector):
    """Return the tensors that a flat vector is made of."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES.values()])[:-1]
    parts = np.split(vector, ends)
    return {name: part.reshape(SHAPES[name]) for name, part in zip(SHAPES, parts, strict=True)}


def loss_and_gradient(tensors, inputs, targets):
    """Return the mean cross-entropy, and its gradient as a flat vector."""
    rows = np.arange(len(targets))
    embedded = tensors["embedding"][inputs].reshape(len(inputs), -1)
    active = np.tanh(embedded @ tensors["hidden"] + tensors["hidden_bias"])
    logits = active @ tensors["output"] + tensors["output_bias"]
    logits -= logits.max(axis=1, keepdims=True)
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    loss = -np.log(likely[rows, targets]).mean()

    gradient = np.zeros(sum(np.prod(shape) for shape in SHAPES.values()), np.float32)
    of = views_of(gradient)
    above = likely
    above[rows, targets] -= 1
    above /= len(targets)
    of["output"][:] = active.T @ above
    of["output_bias"][:] = above.sum(axis=0)
    below = above @ tensors["output"].T * (1 - active**2)
    of["hidden"][:] = embedded.T @ below
    of["hidden_bias"][:] = below.sum(axis=0)
    back = (below @ tensors["hidden"].T).reshape(*inputs.shape, WIDTH)
    np.add.at(of["embedding"], inputs, back)
    return float(loss), gradient


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--rate", type=float, default=0.2)
parser.add_argument("--workers", type=int, help="begin when so many take part")
arguments = parser.parse_args()

text, held_out = load_text()
unseen, next_of_unseen = Batches(held_out, batch=1000, context=CONTEXT, seed=0).next()

random = np.random.default_rng(0)
size = sum(np.prod(shape) for shape in SHAPES.values())
parameters = random.normal(0, 0.1, size).astype(np.float32)
tensors = views_of(parameters)

with gradwire.join(parameters, workers=arguments.workers) as session:
    before, _ = loss_and_gradient(tensors, unseen, next_of_unseen[:, -1])
    batches = Batches(text, batch=64, context=CONTEXT, seed=session.rank)
    for step in range(1, arguments.steps + 1):
        inputs, targets = batches.next()
        loss, gradient = loss_and_gradient(tensors, inputs, targets[:, -1])
        parameters -= arguments.rate * gradient
        session.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)

after, _ = loss_and_gradient(tensors, unseen, next_of_unseen[:, -1])
print(f"replica {session.digest()}, loss {before:.3f} -> {after:.3f}")
