"""Environments by id: ours, gymnax's, navix's, Atari's and Gymnasium's."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ube.envs.arguments import known_names
from ube.envs.atari import GAMES, PREFIX, atari, rom_of
from ube.envs.atari import REMEDY as ATARI_REMEDY
from ube.envs.contract import Environment, HostedEnvironment
from ube.envs.gymnasium_adapter import PREFIX as GYM
from ube.envs.gymnasium_adapter import gymnasium_environment, gymnasium_ids, known, name_of, source_of
from ube.envs.key_door import key_door
from ube.envs.mountain_car import mountain_car_sparse
from ube.envs.navix_adapter import navix_environment
from ube.envs.own import chain, deep_sea, tree
from ube.errors import UsageError

OWN: dict[str, tuple[Callable[..., Environment], str]] = {
    "DeepSea-v0": (deep_sea, "a treasure found only by going right all the way (Osband et al. 2019)"),
    "Tree-v0": (tree, "one wrong turn ends it, 1 after the last junction (Janz et al. 2019)"),
    "Chain-v0": (chain, "a known branch against a long noisy one (the paper's Figure 1)"),
    "KeyDoor-v0": (key_door, "take the key, unlock the door, 1 at the goal and nothing before; cycles all along"),
    "MountainCarSparse-v0": (mountain_car_sparse, "swing up the hill, 1 at the goal and nothing before"),
}
NAVIX_EXAMPLE = "Navix-DoorKey-5x5-v0"


class Listed(NamedTuple):
    id: str
    description: str
    args: dict[str, Any]
    """Names and defaults."""


def make(env_id: str, **env_args: Any) -> Environment | HostedEnvironment:
    """The environment of this id and these arguments: always the same object, so that compiled loops are found again."""
    if env_id in OWN:
        defaults = _defaults(OWN[env_id][0])
        known_names(env_id, env_args, defaults)
        env_args = defaults | env_args
    if env_id.startswith(PREFIX):
        known_names(env_id, env_args, _defaults(atari))
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in env_args.items()}
    try:
        return _make(env_id, tuple(sorted((name, type(value), value) for name, value in frozen.items())))
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        raise UsageError(f"{env_id}: its arguments must be numbers, words or tuples, not {env_args!r}") from error


def wrapped(source: Any, **env_args: Any) -> HostedEnvironment:
    """What was given from Python: a class or function that makes environments of Gymnasium, or such an environment."""
    if not callable(source) and not hasattr(source, "action_space"):
        raise UsageError(
            f"env={source!r}: give an id, a class or a function that makes an environment, or an environment"
        )
    return gymnasium_environment(source, name_of(source), **env_args)


def environments() -> list[Listed]:
    """What `make` takes. Only one of navix's ids is listed, since naming them all would import it."""
    from ube.envs.gymnax_adapter import gymnax_arguments

    own = [Listed(env_id, text, _defaults(builder)) for env_id, (builder, text) in OWN.items()]
    gymnax = [Listed(env_id, "of gymnax", args) for env_id, args in gymnax_arguments().items()]
    grids = Listed(NAVIX_EXAMPLE, "and other grids of navix (pip install 'ube-rl[grids]')", {"max_steps": 100})
    games = Listed(
        f"{PREFIX}breakout", f"and the other {len(GAMES) - 1} games of Atari ({ATARI_REMEDY})", _defaults(atari)
    )
    theirs = Listed(
        f"{GYM}CartPole-v1",
        "and every other of Gymnasium with discrete actions; yours is module:NAME",
        {"frame_stack": 1},
    )
    return [*own, *gymnax, grids, games, theirs]


@functools.cache
def _make(env_id: str, env_args: tuple[tuple[str, type, Any], ...]) -> Environment | HostedEnvironment:
    """The types are in the key because 1 == True == 1.0, and only some of them are valid."""
    given = {name: value for name, _, value in env_args}
    if env_id in OWN:
        return OWN[env_id][0](**given)
    if env_id.startswith(PREFIX):
        return atari(env_id, **given)
    from ube.envs.gymnax_adapter import gymnax_environment, gymnax_ids  # takes a second, and JAX into use

    if env_id in gymnax_ids():
        return gymnax_environment(env_id, **given)
    if env_id.startswith("Navix-"):
        return navix_environment(env_id, **given)
    if env_id.startswith(GYM) or ":" in env_id or known(env_id):
        return gymnasium_environment(source_of(env_id), env_id, **given)
    if env_id.startswith("ALE/"):  # as Gymnasium calls them, once ale-py is imported
        raise UsageError(
            f"no environment {env_id!r}: games of Atari are {PREFIX}{rom_of(env_id[4:].partition('-')[0])} here"
        )
    ids = [*OWN, *gymnax_ids(), *gymnasium_ids(), NAVIX_EXAMPLE, *(PREFIX + game for game in GAMES)]
    near = difflib.get_close_matches(env_id, dict.fromkeys(ids), n=3, cutoff=0.3)
    raise UsageError(f"no environment {env_id!r}; the nearest ids are {', '.join(near or OWN)} (`ube envs` lists all)")


def _defaults(builder: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(builder).parameters.items()
    return {name: parameter.default for name, parameter in parameters if parameter.default is not parameter.empty}
