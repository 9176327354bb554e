"""A training loop in JAX: a compiled step computes the change, gradwire adds it and shares it.

The parameters are a pytree, raveled into one numpy vector that belongs to the session: `push` adds
a change to it and sends what is due, `pull` adds what peers sent. On one machine::

    gradwire run -n 2 -- python docs/examples/jax_loop.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import gradwire
from gradwire.cli.demo.text import VOCABULARY, Batches, load_text

CONTEXT, WIDTH, HIDDEN = 8, 16, 128

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--workers", type=int, help="begin when so many take part")
arguments = parser.parse_args()

keys = jax.random.split(jax.random.key(0), 3)
tree = {
    "embedding": jax.random.normal(keys[0], (VOCABULARY, WIDTH)),
    "hidden": jax.random.normal(keys[1], (CONTEXT * WIDTH, HIDDEN)) / 12,
    "hidden_bias": jnp.zeros(HIDDEN),
    "output": jax.random.normal(keys[2], (HIDDEN, VOCABULARY)) / 12,
    "output_bias": jnp.zeros(VOCABULARY),
}
flat, unravel = ravel_pytree(tree)
parameters = np.array(flat, np.float32)  # a copy, which may be written to

optimizer = optax.adam(2e-3, b1=0.0)
optimizer_state = optimizer.init(flat)


def loss_of(vector, inputs, targets):
    """Return the mean cross-entropy of the next character."""
    tensors = unravel(vector)
    embedded = tensors["embedding"][inputs].reshape(len(inputs), -1)
    active = jax.nn.gelu(embedded @ tensors["hidden"] + tensors["hidden_bias"])
    logits = active @ tensors["output"] + tensors["output_bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


@jax.jit
def change_of(vector, state, inputs, targets):
    """Return by what the optimizer would change the parameters, its new state, and the loss."""
    loss, gradient = jax.value_and_grad(loss_of)(vector, inputs, targets)
    change, state = optimizer.update(gradient, state, vector)
    return change, state, loss


text, held_out = load_text()
unseen, next_of_unseen = Batches(held_out, batch=1000, context=CONTEXT, seed=0).next()

with gradwire.join(parameters, workers=arguments.workers) as session:
    before = float(loss_of(parameters, unseen, next_of_unseen[:, -1]))
    batches = Batches(text, batch=64, context=CONTEXT, seed=session.rank)
    for step in range(1, arguments.steps + 1):
        inputs, targets = batches.next()
        change, optimizer_state, loss = change_of(
            parameters, optimizer_state, inputs, targets[:, -1]
        )
        # JAX may compute on the vector's own memory, and goes on meanwhile: as an array, the change
        # is there, and nobody reads the vector any more.
        session.push(np.asarray(change))
        session.pull()
        if step % 50 == 0:
            print(f"step {step}: loss {float(loss):.3f}", flush=True)

after = float(loss_of(parameters, unseen, next_of_unseen[:, -1]))
print(f"replica {session.digest()}, loss {before:.3f} -> {after:.3f}")
