"""Adapters for frameworks that own the training loop, in place of `gradwire.join`.

`gradwire.integrations.lightning` and `gradwire.integrations.huggingface` each have a
`GradwireCallback`. Each imports its framework; this package imports none. docs/integrations.md
shows them, and loops in numpy and JAX, which need no adapter.
"""

from gradwire.settings.launchers import stand_alone

__all__ = ["stand_alone"]
