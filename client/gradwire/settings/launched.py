"""What ``gradwire run`` says to its workers takes precedence over keywords of their script.

It has started a master, or was told of one, and has keys for it. A script with the address of
another one would dial that in vain.
"""

from collections.abc import Mapping
from typing import Any, Final

LAUNCHED: Final = "GRADWIRE_LAUNCHED"
"""Set by ``gradwire run`` for its workers."""

VARIABLES: Final = {"master": "GRADWIRE_MASTER", "key_file": "GRADWIRE_KEY_FILE"}
"""By setting: the variable that the launcher sets."""


def launched(
    keywords: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], str | None]:
    """Return keywords without what a launcher has said otherwise, and a line about that, or None.

    A script that passes a `key` means the master that it has the key of, and keeps all it says.
    """
    kept = dict(keywords)
    if not environ.get(LAUNCHED) or kept.get("key") is not None:
        return kept, None
    overruled = [
        f"{name}={given!s}"
        for name, variable in VARIABLES.items()
        if (given := kept.get(name)) is not None
        and environ.get(variable)
        and str(given) != environ[variable]
    ]
    for name, variable in VARIABLES.items():
        if environ.get(variable):
            kept.pop(name, None)
    if not overruled:
        return kept, None
    said = {each: environ[each] for each in VARIABLES.values() if environ.get(each)}
    return kept, (
        f"{' and '.join(overruled)}: gradwire run has started this script, so what it says counts, "
        f"{' and '.join(f'{variable}={value}' for variable, value in said.items())}. Unset "
        f"{', '.join([LAUNCHED, *said])} to join the other one"
    )
