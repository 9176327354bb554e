"""What a message has to name, whatever its words are.

An error names the setting, its value, the limit and the way out of it; the sentence around them may
be written better at any time, and no test is about that.
"""

import re


class _Naming(str):
    """A pattern for ``match=`` that is also equal to every text it matches."""

    __slots__ = ("parts",)

    parts: tuple[str, ...]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Naming):
            return self.parts == other.parts
        return isinstance(other, str) and re.search(self, other) is not None

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return super().__hash__()

    def __repr__(self) -> str:
        return f"naming({', '.join(map(repr, self.parts))})"


def naming(*parts: object) -> str:
    """Return what is equal to each message that names all of these, in any order and any words.

    It goes wherever a message would: ``match=naming("rank", -1, 4091)``,
    ``assert caplog.messages == [naming("run-000001.safetensors", 4)]``.

    Parameters
    ----------
    parts : object
        Names, values, limits, as `str` writes them. Each has to stand by itself: 1 is not found in
        10, -1, 1.5 or rank1, nor ``density`` in ``target_density``.
    """
    assert parts, "every message names nothing"
    texts = tuple(map(str, parts))
    assert all(texts), f"{parts}: an empty text is in every message"
    pattern = _Naming(r"(?s)\A" + "".join(f"(?=.*{_alone(text)})" for text in texts))
    pattern.parts = texts
    return pattern


def _alone(text: str) -> str:
    """Return a pattern of a text that is no part of a longer word or number."""
    begins_inside = r"(?<![\w.])(?<!(?<!\w)-)" if text[0].isalnum() else ""
    goes_on = r"(?!\.?\w)" if text[-1].isalnum() else ""
    return begins_inside + re.escape(text) + goes_on
