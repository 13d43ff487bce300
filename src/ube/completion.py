"""Shell completion from the commands themselves: subcommands, options, and the names that options take."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from ube.errors import UsageError, nearest

SHELLS = ("bash", "zsh", "tcsh")
MANY = ("agents", "set", "modules")
"""Options that take several words."""


_POSITIONAL = typing.get_args(Positional[int])[1]
"""What tyro marks such arguments with."""


@dataclass
class Completion:
    """Print a completion script; bash and zsh: eval "$(ube completion bash)" in your start-up file."""

    shell: Annotated[Positional[str], arg(metavar="bash|zsh|tcsh")]
    """For zsh the same line with zsh; for tcsh: ube completion tcsh > ~/.ube.tcsh, and `source ~/.ube.tcsh`."""

    def run(self) -> None:
        from ube.cli import COMMANDS

        if self.shell not in SHELLS:
            raise UsageError(f"ube completion {self.shell}: {nearest(self.shell, SHELLS)}")
        print(script(self.shell, COMMANDS))


@dataclass(frozen=True)
class Offer:
    """What a command can be given."""

    options: dict[str, list[str]]
    """--option -> the words it takes, as far as they can be listed."""
    flags: list[str]
    """Options that take none."""
    words: list[str]
    """Of its positional arguments."""


def script(shell: str, commands: Mapping[str, type]) -> str:
    offers = {name: _offer(name, command) for name, command in commands.items()}
    if shell == "tcsh":
        return _tcsh(offers)
    start = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    return (start if shell == "zsh" else "") + _bash(offers)


def _offer(command: str, kind: type) -> Offer:
    names = _names(command)
    options: dict[str, list[str]] = {}
    flags = ["--help"]
    words: list[str] = []
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        extras = typing.get_args(hints[field.name])[1:]
        metavar = next((extra.metavar for extra in extras if getattr(extra, "metavar", None)), "") or ""
        known = names.get(field.name) or (metavar.split("|") if "|" in metavar else [])
        if _POSITIONAL in extras:
            words += known
        elif hints[field.name] is bool:
            flags.append("--" + field.name.replace("_", "-"))
        else:
            options["--" + field.name.replace("_", "-")] = known
    return Offer(options, flags, words)


def _names(command: str) -> dict[str, list[str]]:
    """Field of a command -> what can be written there."""
    from ube.deep.config import PRESETS, AgentConfig
    from ube.deep.protocols import PROTOCOLS
    from ube.envs import environments
    from ube.envs.atari import GAMES, PREFIX
    from ube.figures import EXPERIMENTS
    from ube.suite import shipped
    from ube.tabular import METHODS

    listed = [one.id for one in environments()]
    every = {
        "env": list(dict.fromkeys([*listed, *(PREFIX + game for game in GAMES)])),
        "agent": list(PRESETS), "agents": list(PRESETS), "protocol": list(PROTOCOLS), "method": list(METHODS),
        "set": [f"{field.name}=" for field in dataclasses.fields(AgentConfig) if field.name != "name"],
    }  # fmt: skip
    own = {"reproduce": ["quick", *EXPERIMENTS], "suite": list(shipped())}
    return every | ({"name": own[command]} if command in own else {})


def _bash(offers: dict[str, Offer]) -> str:
    lines = [
        "# ube completion; words after the last comma are completed as well",
        "_ube() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" option="${COMP_WORDS[COMP_CWORD-1]}" words="" before="" i',
        '  if [[ "$cur" == *,* ]]; then before="${cur%,*},"; fi',
        "  for (( i = COMP_CWORD - 1; i > 1; i-- )); do  # options that take several words",
        '    case "${COMP_WORDS[i]}" in',
        f'      {"|".join("--" + name for name in MANY)}) option="${{COMP_WORDS[i]}}"; break;;',
        "      --*) break;;",
        "    esac",
        "  done",
        f'  if (( COMP_CWORD == 1 )); then words="{" ".join([*offers, "--version", "--help"])}"',
        '  elif [[ "$cur" == -* ]]; then option=""; fi',
        '  case "${COMP_WORDS[1]} $option" in',
    ]
    for command, offer in offers.items():
        lines += [f'    "{command} {name}") words="{" ".join(known)}";;' for name, known in offer.options.items()]
        lines.append(f'    "{command} "*) words="{" ".join([*offer.words, *offer.options, *offer.flags])}";;')
    lines += [
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "${cur#"$before"}"))',
        '  COMPREPLY=("${COMPREPLY[@]/#/$before}")',
        '  [[ "${COMPREPLY[*]}" == *= ]] && compopt -o nospace 2> /dev/null',
        "  return 0",
        "}",
        "complete -o default -F _ube ube",
    ]
    return "\n".join(lines)


def _tcsh(offers: dict[str, Offer]) -> str:
    """One rule for each option, whatever the command: tcsh knows no more."""
    values: dict[str, list[str]] = {}
    for offer in offers.values():
        for name, known in offer.options.items():
            values[name] = list(dict.fromkeys([*values.get(name, []), *known]))
    after = [f"'n/{name}/({' '.join(known)})/'" for name, known in values.items() if known]
    after += [f"'n/{command}/({' '.join(offer.words)})/'" for command, offer in offers.items() if offer.words]
    flags = dict.fromkeys(flag for offer in offers.values() for flag in offer.flags)
    dashed = " ".join(name.removeprefix("--") for name in [*values, *flags])
    return " ".join(["complete ube", f"'c/--/({dashed})/'", f"'p/1/({' '.join(offers)})/'", *after])
