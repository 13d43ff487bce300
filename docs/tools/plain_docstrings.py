"""For the reference: what a docstring says of parameters, as `name: ` or `one, other: `, becomes a list."""

import re
from typing import Any

import griffe

NAMED = re.compile(r"(?:^|(?<=\. ))(\w+(?:, \w+)*): (?=\S)")
"""At the beginning of a line or of a sentence."""


class PlainDocstrings(griffe.Extension):
    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        if func.docstring is not None:
            func.docstring.value = as_list(func.docstring.value, {parameter.name for parameter in func.parameters})


def as_list(text: str, parameters: set[str]) -> str:
    def item(found: re.Match[str]) -> str:
        names = found[1].split(", ")
        return f"\n- {', '.join(f'`{name}`' for name in names)}: " if set(names) <= parameters else found[0]

    listed: list[str] = []
    for line in text.splitlines():
        for part in NAMED.sub(item, line).lstrip("\n").split("\n"):
            if part.startswith("- ") and listed and listed[-1] and not listed[-1].startswith(("- ", "  ")):
                listed.append("")
            listed.append(part)
    return "\n".join(listed)
