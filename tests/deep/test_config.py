"""The config: presets as documented, and every bad input answered with its value and a remedy."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

from ube import UsageError
from ube.deep.config import ABOUT, PRESETS, AgentConfig, agent_config, difference, parse_overrides
from ube.deep.networks import UncertaintyHead
from ube.deep.settings import Knobs, filled, split_knobs
from ube.envs import make


def changed(preset: str) -> dict[str, Any]:
    config, default = dataclasses.asdict(PRESETS[preset]), dataclasses.asdict(AgentConfig())
    return {name: value for name, value in config.items() if value != default[name] and name != "name"}


PAPER = {"policy": "noise-per-step", "features": "learned", "u_network": "head", "warmup_policy": "random"}
DIFFERENCES: dict[str, dict[str, Any]] = {
    "dqn": {"epsilon_start": 1.0, "epsilon_end": 0.1},
    "ube-1step": PAPER,
    "ube-nstep": PAPER | {"n": 150},
    "bonus": {"epsilon_start": 1.0, "epsilon_end": 0.1, "features": "learned", "bonus_scale": 0.1},
    "boot": {"policy": "ensemble", "ensemble": 10, "randomised_prior": 3.0, "mask_probability": 0.5},
    "ube-deep": {
        "policy": "ucb", "beta": 1.0, "beta_unit": "rewards", "optimism": "levels", "levels_wait": True,
        "features": "auto", "noise": "learned", "u_predicts": "continuation", "u_network": "auto", "u_data": "replay",
        "u_learning_rate": 3e-3, "epsilon_start": 1.0, "epsilon_end": 0.05,
    },
    "greedy": {},
    "dqn-small-epsilon": {"epsilon_start": 1.0, "epsilon_end": 0.01},
    "unstructured-noise": PAPER | {"policy": "unstructured-noise"},
}  # fmt: skip


def test_the_presets_are_what_is_documented() -> None:
    assert {name: changed(name) for name in PRESETS} == DIFFERENCES
    assert set(ABOUT) == set(PRESETS)


def test_the_papers_numbers() -> None:
    one, many = PRESETS["ube-1step"], PRESETS["ube-nstep"]
    for config in (one, many):
        assert (config.beta, config.prior, config.u_learning_rate, config.discount) == (0.01, 1.0, 1e-3, 0.99)
        assert (config.u_data, config.u_predicts, config.beta_unit) == ("stream", "total", "one")
        assert (config.epsilon_start, config.epsilon_end, config.trace_decay) == (0.0, 0.0, 1.0)
    assert (one.n, many.n) == (1, 150)
    shapes = jax.eval_shape(UncertaintyHead(4).init, jax.random.key(0), np.zeros((1, 7)))["params"]
    assert shapes["Dense_0"]["kernel"].shape == (7, 512)
    assert shapes["Dense_1"]["kernel"].shape == (512, 4)


def test_defaults_follow_the_observation() -> None:
    vector = filled(agent_config("boot"), make("CartPole-v1"))
    assert (vector.network, vector.optimiser, vector.batch_size, vector.ensemble_of) == ("mlp", "adam", 128, "networks")
    image = filled(agent_config("boot"), make("Breakout-MinAtar"))
    assert (image.network, image.optimiser, image.update_period, image.ensemble_of) == (
        "minatar",
        "adam",
        4,
        "heads",
    )
    assert filled(agent_config("dqn"), make("DeepSea-v0", size=50)).replay_size == 100_000
    assert filled(agent_config("dqn"), make("DeepSea-v0", size=200)).replay_size == 25_000  # both observations fit 2 GB
    given = filled(agent_config("dqn", {"batch_size": 7, "learning_rate": 0.5}), make("CartPole-v1"))
    assert (given.batch_size, given.learning_rate, given.warmup) == (7, 0.5, 128)
    with pytest.raises(UsageError, match=r"network='nature' reads images .* set network=mlp"):
        filled(agent_config("dqn", {"network": "nature"}), make("CartPole-v1"))
    with pytest.raises(UsageError, match=r"network='nature' reads images of 36 pixels or more .* set network=auto"):
        filled(agent_config("dqn", {"network": "nature"}), make("Breakout-MinAtar"))
    with pytest.raises(
        UsageError, match=r"features='learned', ensemble=10: each network would have features of its own"
    ):
        filled(agent_config("boot", {"features": "learned"}), make("CartPole-v1"))


def test_knobs_do_not_shape_the_program() -> None:
    env = make("CartPole-v1")
    one = filled(agent_config("ube-1step", {"beta": 0.3, "prior": 2.0, "discount": 0.5}), env)
    other = filled(agent_config("ube-1step", {"beta": 7.0, "u_learning_rate": 0.1, "learning_rate": 0.2}), env)
    assert split_knobs(one)[0] == split_knobs(other)[0]
    assert float(split_knobs(one)[1].beta) == pytest.approx(0.3)
    assert float(split_knobs(other)[1].learning_rate) == pytest.approx(0.2)
    assert split_knobs(filled(agent_config("ube-nstep"), env))[0] != split_knobs(one)[0]
    with_bonus = filled(agent_config("bonus"), env)
    without = filled(agent_config("bonus", {"bonus_scale": 0.0}), env)
    assert split_knobs(with_bonus)[0] != split_knobs(without)[0]
    assert set(Knobs._fields) <= {field.name for field in dataclasses.fields(AgentConfig)}


UBE, DQN = "ube-1step", "dqn"


@pytest.mark.parametrize(
    ("agent", "overrides", "message"),
    [
        ("dqm", {}, r"agent 'dqm' does not exist: did you mean dqn\?"),
        ("zzz", {}, r"agent 'zzz' does not exist: choose one of dqn, ube-1step"),
        (UBE, {"bata": 1.0}, r"'bata' is not a field of an agent: did you mean beta"),
        (UBE, {"beta": 0.0}, r"beta=0.0: β must be positive"),
        (UBE, {"beta": -1.0}, r"beta=-1.0"),
        (UBE, {"beta": math.nan}, r"beta=nan"),
        (UBE, {"beta": math.inf}, r"beta=inf"),
        (UBE, {"prior": 0.0}, r"prior=0.0: μ must be positive"),
        (UBE, {"prior": -2.0}, r"prior=-2.0"),
        (UBE, {"n": 0}, r"n=0: n must be at least 1"),
        (UBE, {"n": -3}, r"n=-3"),
        (UBE, {"n": 2.5}, r"n=2.5: expected int"),
        (UBE, {"n": True}, r"n=True: expected int"),
        (UBE, {"beta": "much"}, r"beta='much': expected float"),
        (UBE, {"beta": None}, r"beta=None: expected float"),
        (UBE, {"normalise_features": 1}, r"normalise_features=1: expected bool"),
        (UBE, {"policy": "thompson"}, r"policy='thompson': choose one of epsilon-greedy, noise-per-step"),
        (UBE, {"policy": ["ucb"]}, r"policy=\['ucb'\]: choose one of"),
        (UBE, {"features": "none"}, r"policy='noise-per-step' acts on u: set features \(is 'none'\)"),
        (UBE, {"u_network": "none"}, r"policy='noise-per-step' acts on u: .* u_network \(is 'none'\)"),
        (UBE, {"trace_decay": 1.5}, r"trace_decay=1.5"),
        (UBE, {"u_data": "replay", "n": 3}, r"n=3, trace_decay=1: the replay gives 1-step targets"),
        (UBE, {"u_data": "replay", "trace_decay": 0.5}, r"trace_decay=0.5: the replay gives 1-step"),
        (UBE, {"features": "random", "sigma_from": "replay"}, r"sigma_from='replay': only learned features drift"),
        (DQN, {"noise": "learned"}, r"noise='learned': there is no ν without features"),
        (UBE, {"forgetting": 0.9, "sigma_from": "replay"}, r"forgetting=0.9: the replay forgets by itself"),
        (UBE, {"update_period": 20_000}, r"update_period=20000: within 1..10000"),
        (UBE, {"features": "bins", "forgetting": 0.9}, r"forgetting=0.9: binning features do not drift"),
        (UBE, {"forgetting": 1.1}, r"forgetting=1.1"),
        (DQN, {"bonus_scale": 0.1}, r"features='none': ν needs features"),
        (DQN, {"u_network": "head"}, r"features='none': ν needs features"),
        (DQN, {"ensemble": 5}, r"policy='epsilon-greedy', ensemble=5"),
        ("boot", {"ensemble": 1}, r"policy='ensemble', ensemble=1"),
        ("boot", {"mask_probability": 0.0}, r"mask_probability=0.0"),
        (DQN, {"epsilon_end": 1.2}, r"epsilon_end=1.2: ε must be within 0..1"),
        (DQN, {"discount": 1.01}, r"discount=1.01: γ must be within 0..1"),
        (DQN, {"learning_rate": -1.0}, r"learning_rate=-1.0"),
        (DQN, {"learning_rate": math.nan}, r"learning_rate=nan"),
        (DQN, {"batch_size": -1}, r"batch_size=-1"),
        (DQN, {"reward_clip": -1.0}, r"reward_clip=-1.0"),
        (DQN, {"hidden": ()}, r"hidden=\(\): give at least one positive width"),
        (DQN, {"hidden": (64, 0)}, r"hidden=\(64, 0\)"),
        (DQN, {"hidden": 64}, r"hidden=64"),
        (DQN, {"hidden": ("a",)}, r"hidden=\('a',\)"),
    ],
)
def test_bad_configs_name_the_value(agent: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        agent_config(agent, overrides)


def test_words_become_fields_of_their_type() -> None:
    words = [
        "beta=0.5", "n=1_000", "hidden=32,16", "normalise_features=false", "policy=ucb", "env.size=20", "env.name=x",
        "env.means=[1,2]", "env.randomize_actions=False", "reward_clip=inf",
    ]  # fmt: skip
    fields, env_args = parse_overrides(words)
    assert fields == {
        "beta": 0.5, "n": 1000, "hidden": (32, 16), "normalise_features": False, "policy": "ucb", "reward_clip": math.inf,
    }  # fmt: skip
    assert isinstance(fields["n"], int)
    assert env_args == {"size": 20, "name": "x", "means": [1, 2], "randomize_actions": False}
    assert parse_overrides(["hidden=(8,)"])[0] == {"hidden": (8,)}
    assert parse_overrides([]) == ({}, {})


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("beta", "--set 'beta': write KEY=VALUE"),
        ("bta=1", "'bta' is not a field of an agent: did you mean beta"),
        ("name=x", "'name' is not a field"),
        ("n=1.5", "n=1.5: expected int"),
        ("beta=big", "beta=big: expected float"),
        ("hidden=a,b", "hidden=a,b: expected numbers, such as 64,64"),
        ("normalise_features=maybe", "normalise_features=maybe: expected bool"),
    ],
)
def test_bad_words_name_the_word(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_overrides([word])


@pytest.mark.parametrize("preset", PRESETS)
def test_the_shown_difference_makes_the_preset(preset: str) -> None:
    fields, _ = parse_overrides(difference(PRESETS[preset]).split())
    assert agent_config(AgentConfig(name=preset), fields) == PRESETS[preset]


@pytest.mark.parametrize(
    "deep", ['{"a":' * 100_000, "[" * 100_000, "[" * 70 + "]" * 70], ids=["tables", "lists", "whole"]
)
def test_words_that_only_look_like_a_deep_value_are_words(deep: str) -> None:
    assert parse_overrides([f"env.x={deep}"]) == ({}, {"x": deep})
