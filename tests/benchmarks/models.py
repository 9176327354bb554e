"""The tensors of a model as large as the one that Strom's paper reports."""

from typing import Final

WIDTH: Final = 384
LAYERS: Final = 8
TOKENS: Final = 320
POSITIONS: Final = 410

GPT_SHAPES: Final[tuple[tuple[int, ...], ...]] = (
    (TOKENS, WIDTH),
    (POSITIONS, WIDTH),
    *LAYERS
    * (
        (WIDTH,), (WIDTH,), (3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,),
        (WIDTH,), (WIDTH,), (4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,),
    ),
    (WIDTH,),
    (WIDTH,),
    (TOKENS, WIDTH),
    (TOKENS,),
)  # fmt: skip
"""A GPT-2 of 14.6 million parameters, exactly: two embeddings, blocks of two norms and four linear
layers, a norm and a linear layer."""
