"""A trunk of one's own, from Python and by its place; and which agent of a run is its best."""

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ube
from ube import UsageError
from ube.cli import main
from ube.comparison.compare import compare
from ube.deep.config import PRESETS, as_fields, difference
from ube.deep.networks import MLP, found_network
from ube.runs import Run, Schedule
from ube.suite import read_suite

SMALL: dict[str, Any] = {"replay_size": 200, "batch_size": 4, "warmup": 10}
SEA = {"size": 4}


class Two(nn.Module):
    """What network=mlp with hidden=(16, 12) is."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(16)(x))
        return nn.relu(nn.Dense(12)(x))


def trained(out: Path, network: Any, agent: str = "ube-1step", **overrides: Any) -> Run:
    changes = SMALL | overrides | {"network": network}
    return ube.train("DeepSea-v0", agent, 60, out=out, env_args=SEA, overrides=changes, chunk=20)


@pytest.mark.parametrize("agent", ["ube-1step", "boot", "ube-deep"])
def test_a_trunk_of_ones_own_learns_as_the_same_trunk_of_ours(agent: str, tmp_path: Path) -> None:
    ours = trained(tmp_path / "ours", "mlp", agent, hidden=(16, 12))
    own = trained(tmp_path / "own", Two, agent)
    assert own.config["agent"]["network"] == f"{__name__}:Two"
    for name in ("batch_size", "update_period", "ensemble_of", "learning_rate"):
        assert own.config["agent"][name] == ours.config["agent"][name]
    for column in ("loss", "u", "nu", "q"):
        np.testing.assert_array_equal(own.metrics[column], ours.metrics[column])
    assert (own.path / "state.safetensors").read_bytes() == (ours.path / "state.safetensors").read_bytes()
    np.testing.assert_array_equal(own.evaluate(3).episode_return, ours.evaluate(3).episode_return)


def test_the_width_of_its_features_is_that_of_sigma(tmp_path: Path) -> None:
    class Narrow(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.tanh(nn.Dense(5)(x.reshape(x.shape[0], -1)))

    run = trained(tmp_path / "run", Narrow)
    assert run.agent.state.counts.sigma.shape[-2:] == (5, 5)
    assert run.config["agent"]["network"] == "object/Narrow()"
    with pytest.raises(
        UsageError, match=r"object/Narrow\(\), which only Python can give again: ube.load\(path, network=…\)"
    ):
        ube.load(run.path).evaluate(1)
    again = ube.load(run.path, network=Narrow)
    np.testing.assert_array_equal(again.evaluate(2).episode_return, run.evaluate(2).episode_return)
    with pytest.raises(UsageError, match=r"was it trained in DeepSea-v0.* with this network"):
        ube.load(run.path, network=Two).evaluate(1)


def test_it_is_known_by_what_was_given(place: str, tmp_path: Path) -> None:
    """A name in config.json leads back to the network, or says that only Python can give it."""
    for given, name in (
        (Two, f"{__name__}:Two"), (lambda: Two(), "object/Two()"), (MLP((5,)), "object/MLP(hidden=(5,))"),
        (functools.partial(MLP, (5,)), "object/MLP(hidden=(5,))"), (place, place), ("my_trunks:part", "my_trunks:part"),
        ("my_trunks:made", "my_trunks:made"), (nn.remat(Two), "object/CheckpointTwo()"),
    ):  # fmt: skip
        assert as_fields(dataclasses.replace(PRESETS["dqn"], network=found_network(given)))["network"] == name
    run = trained(tmp_path / "run", place)
    assert run.evaluate(1)
    for other in ("my_trunks:part", "mlp"):
        with pytest.raises(UsageError, match=f"has the network {place}, not {other}"):
            ube.load(run.path, network=other).evaluate(1)
    with pytest.raises(UsageError, match=f"has the network mlp, not {place}"):
        ube.load(trained(tmp_path / "ours", "mlp").path, network=place).evaluate(1)


def test_a_function_that_makes_another_network_than_before_is_compiled_anew(tmp_path: Path) -> None:
    width = 6

    def made() -> nn.Module:
        return MLP((width,))

    widths = []
    for width in (6, 7):
        run = trained(tmp_path / f"{width}", made, "dqn")
        widths.append(run.agent.state.values.params["params"]["Dense_0"]["kernel"].shape[0])
        assert run.config["agent"]["network"] == f"object/MLP(hidden=({width},))"
    assert widths == [6, 7]
    with pytest.raises(UsageError, match=r"begun with agent.network=object/MLP.*6.*not object/MLP.*7"):
        ube.train(
            "DeepSea-v0", "dqn", 60, out=tmp_path / "6", env_args=SEA, overrides=SMALL | {"network": made}, chunk=20,
            resume=True,
        )  # fmt: skip


def test_a_picture_reaches_it_as_a_picture(tmp_path: Path) -> None:
    class Seeing(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.relu(nn.Conv(4, (3, 3), strides=2)(x))
            return nn.relu(nn.Dense(8)(x.reshape(x.shape[0], -1)))

    for agent in ("ube-1step", "boot"):
        run = ube.train(
            "Breakout-MinAtar", agent, 30, out=tmp_path / agent, chunk=15, overrides=SMALL | {"network": Seeing}
        )
        assert (run.config["agent"]["update_period"], run.config["agent"]["ensemble_of"]) == (4, "heads")
        assert np.isfinite(run.metrics["loss"][-1])


def test_a_run_goes_on_only_with_the_network_it_began_with(tmp_path: Path) -> None:
    trained(tmp_path / "run", Two)
    with pytest.raises(UsageError, match=r"begun with agent.network=.*:Two, not mlp"):
        ube.train(
            "DeepSea-v0", "ube-1step", 60, out=tmp_path / "run", env_args=SEA, overrides=SMALL | {"network": "mlp"},
            chunk=20, resume=True,
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_trunks.py").write_text(
        "import functools\nfrom ube.deep.networks import MLP\ndef wide(): return MLP((24,))\nnumber = 3\n"
        "part = functools.partial(MLP, (4,))\nmade = MLP((4,))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "my_trunks:wide"


def test_by_its_place_in_the_shell(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["--env", "DeepSea-v0", "--set", f"network={place}", "env.size=4", "warmup=10", "features=learned"]
    main(["train", *words, "--explain"])
    assert place in capsys.readouterr().out
    main(["train", *words, "--steps", "40", "--out", str(out)])
    assert f"ube evaluate {out} --network {place}`" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["evaluate", str(out)])
    assert f"a file may not choose which module is run: give it again (--network {place}," in capsys.readouterr().err
    main(["evaluate", str(out), "--network", place, "--episodes", "3"])
    assert "mean return" in capsys.readouterr().out


def test_a_suite_and_a_comparison_find_it_by_its_place(place: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        f'[[cells]]\nenvs = ["DeepSea-v0"]\nagents = ["dqn"]\nseeds = 1\nsteps = 40\nset = {{network = "{place}"}}\n'
    )
    with pytest.raises(UsageError, match=r"asks for my_trunks:wide, and a file may not choose .*--modules my_trunks"):
        read_suite(str(tmp_path / "s.toml"))
    (tmp_path / "t.toml").write_text((tmp_path / "s.toml").read_text().replace(place, ":x"))
    with pytest.raises(UsageError, match="write module:NAME"):
        read_suite(str(tmp_path / "t.toml"))
    assert read_suite(str(tmp_path / "s.toml"), modules=("my_trunks",)).cells[0].overrides == {"network": place}

    class Local(Two):
        pass

    for wrong, message in (
        (Local, "processes of their own"), (MLP((4,)), "processes of their own"), ("my_trunks:narrow", "has no 'narrow'"),
        (f"{__name__}:Straight", "features are float32 of shape"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            compare("DeepSea-v0", ["dqn"], steps=40, overrides={"network": wrong}, out=tmp_path / "compared")


class Needy(nn.Module):
    width: int

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.BatchNorm(use_running_average=False)(x.reshape(len(x), -1))


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dropout(0.5, deterministic=False)(x.reshape(len(x), -1))


class Straight(nn.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return x


class Pair(nn.Module):
    def __call__(self, x: jax.Array) -> Any:
        return x, x


class Empty(nn.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return x.reshape(len(x), -1)[:, :0]


class Pairs(nn.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return x.reshape(2, -1)


class Odd(nn.Module):
    kind: Any = jnp.float32
    shape: Any = (1,)
    out: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, self.shape, self.kind)
        return (x.reshape(len(x), -1) * scale).astype(self.out)


class Failing(nn.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        raise RuntimeError("on purpose")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Needy, "Needy cannot be made without arguments .*width"),
        (dict, "gave dict, which is no flax.linen.Module"),
        (Normed, r"keeps a state of its own \(batch_stats\)"),
        (Dropping, r"Dropping cannot read observations .*Rng.*no randomness"),
        (Straight, r"Straight: features are float32 of shape \(batch, D\), .* shape \(3, 4, 4\)"),
        (Pair, "for a batch of 3 it gave tuple"),
        (Empty, r"gave float32 of shape \(3, 0\)"),
        (lambda: Odd(jnp.bfloat16), r"Odd\(.*has a parameter of bfloat16, shape \(1,\): parameters are float32"),
        (lambda: Odd(shape=()), r"has a parameter of float32, shape \(\): .*of shape \(1,\) at least"),
        (lambda: Odd(out=jnp.float16), r"gave float16 .*astype\(jnp.float32\)"),
        (lambda: Odd(shape=[1]), "its fields cannot be compared .*make lists tuples"),
        (Pairs, r"for a batch of 3 it gave float32 of shape \(2, 24\)"),
        (lambda: sys.exit(0), "cannot be made without arguments .SystemExit: 0"),
        (Failing, "RuntimeError: on purpose"),
        (3, "network=3: choose one of auto, mlp"),
        ("resnet", "network='resnet': choose one of auto, mlp"),
        ("my_trunks:wid", "my_trunks has no 'wid'"),
        ("my_trunks:number", "it is int"),
        ("no_trunks:wide", "cannot be imported"),
        (":wide", "write module:NAME, such as my_module:MyTrunk"),
    ],
)
@pytest.mark.usefixtures("place")
def test_one_that_will_not_do_is_refused_before_anything_is_written(network: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        trained(tmp_path / "run", network)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_a_config_with_one_is_shown_by_its_name() -> None:
    mine = dataclasses.replace(PRESETS["dqn"], network=Two)
    assert f"network={__name__}:Two" in difference(mine)


# ---------------------------------------------------------------- the best of a run


class Lever(gymnasium.Env):
    """Ten steps that pay noise: the last evaluation is seldom the best."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return int(action), float(self.np_random.normal()), self.t >= 10, False, {}


def levers(out: Path, **options: Any) -> Run:
    policy = options.pop("policy", "both")
    schedule = Schedule(evaluate_every=100, evaluation_steps=20, evaluation_policy=policy)
    return ube.train(Lever, "dqn", 500, 1, out=out, overrides={"hidden": (4,)}, chunk=50, schedule=schedule, **options)


@pytest.mark.parametrize("policy", ["both", "own"])
def test_the_best_agent_is_that_of_the_best_evaluation(policy: str, tmp_path: Path) -> None:
    run = levers(tmp_path / "run", policy=policy)
    rows = run.evaluations
    decisive = rows["policy"] == ("greedy" if policy == "both" else "own")
    means = {
        step: rows["episode_return"][decisive & (rows["step"] == step)].mean() for step in (100, 200, 300, 400, 500)
    }
    step = max(means, key=lambda one: means[one])
    assert step != 500  # or else the last would pass for the best
    best = ube.load(run.path, Lever, best=True)
    assert int(best.agent.state.steps) == step
    assert int(ube.load(run.path, Lever).agent.state.steps) == 500
    (run.path / "best.safetensors").unlink()
    with pytest.raises(UsageError, match=r"only the last: best.safetensors is gone"):
        ube.load(run.path, Lever, best=True).evaluate(1)


def test_the_best_survives_a_stop_and_a_run_that_goes_on(tmp_path: Path) -> None:
    whole = levers(tmp_path / "whole")
    levers(tmp_path / "parts", callback=lambda now: now.step == 250)
    parts = levers(tmp_path / "parts", resume=True)
    assert (whole.path / "best.safetensors").read_bytes() == (parts.path / "best.safetensors").read_bytes()


def test_without_evaluations_there_is_no_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", "mlp")
    with pytest.raises(UsageError, match="keeps no best agent, only the last"):
        ube.load(run.path, best=True).evaluate(1)
    with pytest.raises(SystemExit):
        main(["evaluate", str(run.path), "--best"])
    assert "keeps no best agent" in capsys.readouterr().err
