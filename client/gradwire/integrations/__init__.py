"""Ways in besides `gradwire.join`: for frameworks that own the training loop.

`gradwire.integrations.lightning` and `gradwire.integrations.huggingface` each have a
`GradwireCallback`; importing one imports its framework, and importing this package imports none.
docs/integrations.md shows them, and loops in numpy and JAX, which need nothing from here.
"""

from gradwire.integrations.launchers import stand_alone

__all__ = ["stand_alone"]
