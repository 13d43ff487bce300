"""Runs: what lands in a directory, what comes back from it, and what happens when things go wrong."""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep.tiny import SEA, SMALL
from ube import RunError, UsageError
from ube.deep.config import agent_config
from ube.deep.loop import Carry
from ube.deep.session import Session
from ube.envs import Step, make
from ube.runs import Run, Schedule, load, train
from ube.runs.directory import RunDirectory


@pytest.fixture(scope="module", autouse=True)
def made_here() -> Iterator[None]:
    """`train` and `load` find the sea of these tests, whose programs other tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ube.runs.plan.make", lambda env_id, **args: {"sea": SEA}[env_id])
        yield


def trained(out: Path, agent: str = "ube-1step", steps: int = 208, **overrides: Any) -> Run:
    return train("sea", agent, steps, 3, overrides=SMALL | overrides, out=out, chunk=100)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("runs") / "one")


def test_a_run_is_plain_files(run: Run) -> None:
    assert {path.name for path in run.path.iterdir()} == {
        "config.json", "episodes.jsonl", "metrics.jsonl", "state.safetensors", ".lock",
    }  # fmt: skip
    config = json.loads((run.path / "config.json").read_text())
    assert (config["env"], config["seed"], config["steps"], config["chunk"]) == ("sea", 3, 208, 100)
    assert config["agent"]["name"] == "ube-1step"
    assert (config["agent"]["batch_size"], config["agent"]["optimiser"]) == (16, "adam")  # nothing left to "auto"
    assert {"ube", "jax", "python"} <= set(config["versions"])
    lines = [json.loads(line) for line in (run.path / "episodes.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(8, 209, 8))
    assert all(line["episode_length"] == 8 for line in lines)


def test_loading_gives_the_same_columns(run: Run) -> None:
    again = load(run.path)
    for mine, theirs in ((run.episodes, again.episodes), (run.metrics, again.metrics)):
        assert list(mine) == list(theirs)
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])
    direct = Session(SEA, run.agent.session.config, 3)
    parts = list(direct.run(208, 100))
    paid = np.concatenate([part.episodes.episode_return for part in parts])
    np.testing.assert_array_equal(run.episodes["episode_return"], paid)
    assert run.metrics["step"].tolist() == [8, 108, 208]
    assert np.isnan(run.metrics["loss"][0])
    assert run.metrics["loss"][1:].tolist() == [part.metrics["loss"] for part in parts[1:]]


def test_the_agent_that_comes_back_thinks_what_the_trained_one_did(run: Run) -> None:
    direct = Session(SEA, run.agent.session.config, 3)
    list(direct.run(208, 100))
    state, session = direct.learner, run.agent.session
    for row in range(4):
        observation = np.zeros((8, 8), bool)
        observation[row, 0] = True
        choice = session.loop.think(state, observation, jax.random.key(5), session.knobs)
        belief = run.agent.uncertainty(observation)
        for mine, theirs in ((belief.q, choice.q), (belief.u, choice.u), (belief.nu, choice.nu)):
            assert mine.shape == (2,)
            np.testing.assert_array_equal(mine, theirs)
        assert run.agent.act(observation, seed=5) == int(choice.action)
        assert load(run.path).agent.act(observation, seed=5) == int(choice.action)
        assert belief.nu.min() > 0
    np.testing.assert_array_equal(np.asarray(run.agent.session.instance.right), direct.instance.right)
    with pytest.raises(UsageError, match=r"observation has shape \(8,\): DeepSea\(8\) gives \(8, 8\)"):
        run.agent.act(np.zeros(8))


def test_evaluation_counts_episodes_and_repeats(run: Run) -> None:
    own, again = (run.evaluate(7, policy="own", seed=1) for _ in range(2))
    assert own.episode_return.shape == own.episode_length.shape == (7,)
    np.testing.assert_array_equal(own.episode_return, again.episode_return)
    np.testing.assert_array_equal(own.episode_length, 8)
    for bad in ({"episodes": 0}, {"policy": "best"}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            run.evaluate(**bad)  # type: ignore[arg-type]


def test_greedy_evaluation_is_greedy_but_for_epsilon(run: Run) -> None:
    greedy = run.evaluate(200, seed=1)
    # without ε every episode in this deterministic sea is the same; with ε = 0.05, (1 - 0.025)^8 = 82 % of them are
    _, counts = np.unique(np.round(greedy.episode_return, 5), return_counts=True)
    assert counts.max() / 200 > 0.7
    agent = run.agent
    noisy = dataclasses.replace(agent.session.config, epsilon_evaluation=0.0, beta=100.0)
    session = Session(SEA, noisy, 3)
    session.instance = agent.session.instance
    played = dataclasses.replace(agent, session=session)
    assert len(set(played.evaluate(50, seed=2).episode_return.tolist())) == 1
    assert (
        len(set(played.evaluate(50, policy="own", seed=2).episode_return.tolist())) > 4
    )  # β is heard by this one alone
    assert session.loop is agent.session.loop


def test_evaluation_takes_an_epsilon_of_its_own(run: Run) -> None:
    assert len(set(run.evaluate(50, seed=1, epsilon=0.0).episode_return.tolist())) == 1
    assert len(set(run.evaluate(50, seed=1, epsilon=1.0).episode_return.tolist())) > 4
    with pytest.raises(UsageError, match=r"epsilon=1.5: ε must be a number within 0..1"):
        run.evaluate(epsilon=1.5)
    with pytest.raises(UsageError, match=r"epsilon=0.1, policy=own: only the greedy policy takes an ε"):
        run.evaluate(policy="own", epsilon=0.1)


def test_a_run_never_overwrites_another(run: Run, tmp_path: Path) -> None:
    before = (run.path / "config.json").read_bytes()
    with pytest.raises(
        UsageError, match=r"exists and is not empty: --resume goes on with it, --out chooses another place"
    ):
        trained(run.path)
    assert (run.path / "config.json").read_bytes() == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=r"file is a file: choose another place"):
        trained(tmp_path / "file")
    with pytest.raises(UsageError, match=r"is not a run: it has no config.json"):
        load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"steps": 0}, "steps=0: at least 1"),
        ({"steps": 1.5}, "steps=1.5: a whole number"),
        ({"steps": "10"}, "steps='10': a whole number"),
        ({"chunk": -5}, "chunk=-5: at least 1"),
        ({"protocol": "dopamine"}, "protocol 'dopamine': only games of atari/… have one"),
        ({"schedule": Schedule(n_envs=7)}, r"n_envs=7: DeepSea\(8\) is compiled, and runs one at a time"),
    ],
)
def test_bad_values_leave_nothing_behind(asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        train("sea", "dqn", out=tmp_path / "run", overrides=SMALL, **asked)
    assert not (tmp_path / "run").exists()


def finite(tree: Any) -> bool:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return all(np.isfinite(leaf).all() for leaf in leaves if leaf.dtype == np.float32)


def broken_at_step_109(patch: pytest.MonkeyPatch, run: Run, broken: Callable[[Carry], Carry]) -> None:
    """The third chunk of a run, decisions 109 to 208, starts from a state put through `broken`."""
    loop, starts = run.agent.session.loop, itertools.count()
    chunk = loop.chunk

    def played(carry: Carry, *rest: Any) -> Any:
        return chunk(broken(carry) if next(starts) == 2 else carry, *rest)

    patch.setattr(loop, "chunk", played)


def assert_kept_until_step_108(kept: Run, run: Run) -> None:
    np.testing.assert_array_equal(kept.episodes["episode_return"], run.episodes["episode_return"][:13])
    assert kept.metrics["step"].tolist() == [8, 108]
    state = kept.agent.state
    assert (int(state.steps), int(state.updates)) == (108, 100)
    assert finite(state)
    assert 0 <= kept.agent.act(np.zeros((8, 8), bool)) < 2


def test_an_environment_that_fails_stops_the_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pays_nan(carry: Carry) -> Carry:
        return carry._replace(instance=carry.instance._replace(scale=jnp.float32(jnp.nan)))

    broken_at_step_109(monkeypatch, run, pays_nan)
    message = (
        r"DeepSea\(8\) gave a reward .* not finite at step 109: mend the environment; .* of step 108, is kept in /"
    )
    with pytest.raises(RunError, match=message):
        trained(tmp_path / "run")
    assert_kept_until_step_108(load(tmp_path / "run"), run)


@pytest.mark.parametrize(("which_episode", "step"), [(1, 1), (2, 8)])
def test_an_observation_at_the_start_of_an_episode_may_not_be_nan(which_episode: int, step: int) -> None:
    """The first episode starts before step 1, the second with the last step of the first."""
    sea = make("DeepSea-v0", size=8)

    def reset(key: jax.Array, right: jax.Array) -> tuple[Any, jax.Array]:
        state, observation = sea.reset(key, right)
        first = (jax.random.key_data(key) == jax.random.key_data(first_reset)).all()
        return state, jnp.where(first == (which_episode == 1), jnp.nan, observation.astype(jnp.float32))

    def advance(key: jax.Array, right: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Step]:
        state, after = sea.step(key, right, state, action)
        return state, after._replace(observation=after.observation.astype(jnp.float32))

    first_reset = jax.random.split(jax.random.key(0), 4)[2]
    float32 = np.dtype(np.float32)
    env = dataclasses.replace(sea, name="Broken", observation_dtype=float32, reset=reset, step=advance)
    with pytest.raises(
        RunError, match=rf"Broken gave a reward or an observation that is not finite at step {step}: mend"
    ):
        list(Session(env, agent_config("dqn", SMALL), seed=0).run(20))


def test_a_run_that_diverges_stops_and_names_the_remedy(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blown_up(carry: Carry) -> Carry:
        huge = jax.tree.map(lambda leaf: 1e30 * leaf, carry.learner.u)
        return carry._replace(learner=carry.learner._replace(u=huge))

    broken_at_step_109(monkeypatch, run, blown_up)
    message = r"diverged before step 208 \(.*u_loss.*\): lower learning_rate .* u_learning_rate \(is 0\.5\), or clip"
    with pytest.raises(RunError, match=message):
        trained(tmp_path / "run", u_learning_rate=0.5)
    kept = load(tmp_path / "run")
    assert int(kept.agent.state.steps) == 108
    assert finite(kept.agent.state)


def test_a_sigma_without_an_inverse_stops_the_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large features without `normalise_features` bring about: Σ⁻¹ is no longer positive definite."""

    def indefinite(carry: Carry) -> Carry:
        counts = carry.learner.counts
        spoiled = counts._replace(information=counts.information - 1e4 * jnp.eye(counts.sigma.shape[-1]))
        return carry._replace(learner=carry.learner._replace(counts=spoiled))

    broken_at_step_109(monkeypatch, run, indefinite)
    with pytest.raises(RunError, match=r"kept in /"):
        trained(tmp_path / "run")
    assert_kept_until_step_108(load(tmp_path / "run"), run)


def damaged(run: Run, where: Path) -> Path:
    shutil.copytree(run.path, where)
    return where / "state.safetensors"


def test_a_damaged_state_is_refused(run: Run, tmp_path: Path) -> None:
    whole = (run.path / "state.safetensors").read_bytes()
    state = damaged(run, tmp_path / "cut")
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        state.write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"state\.safetensors"):
            _ = load(state.parent).agent
    state.write_bytes(b"\xff" * len(whole))
    with pytest.raises(UsageError, match=r"cannot be read"):
        _ = load(state.parent).agent
    state.unlink()
    with pytest.raises(UsageError, match=r"state\.safetensors is not there: the run did not come to its end"):
        _ = load(state.parent).agent


def test_a_state_of_another_shape_is_refused(run: Run, tmp_path: Path) -> None:
    state = damaged(run, tmp_path / "other")
    config = json.loads((state.parent / "config.json").read_text())
    config["agent"]["hidden"] = [17]
    (state.parent / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"should be float32 \(17, 2\), found float32 \(16, 2\)"):
        _ = load(state.parent).agent


def test_a_state_of_another_type_is_refused(run: Run, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    state = damaged(run, tmp_path / "type")
    save_file({name: leaf.astype(np.int32) for name, leaf in load_file(state).items()}, state)
    with pytest.raises(UsageError, match=r"state\.safetensors"):
        _ = load(state.parent).agent


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json cannot be read"),
        ("[]", "config.json"),
        ("{}", "config.json"),
        ('{"agent": {}}', "config.json"),
    ],
)
def test_a_damaged_config_is_refused(run: Run, tmp_path: Path, content: str, message: str) -> None:
    state = damaged(run, tmp_path / "config")
    (state.parent / "config.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        _ = load(state.parent).agent


@pytest.mark.parametrize("key", ["env", "env_args", "agent", "seed"])
def test_a_config_without_a_part_is_refused(run: Run, tmp_path: Path, key: str) -> None:
    state = damaged(run, tmp_path / "part")
    config = {name: value for name, value in run.config.items() if name != key}
    (state.parent / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=rf"config\.json is not that of a run .*{key}"):
        _ = load(state.parent).agent


def test_rows_without_a_column_are_nan_there(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.append("metrics", {"step": 1, "q": 0.5})
    directory.append("metrics", {"step": [2, 3], "loss": [0.1, 0.2]})
    columns = directory.columns("metrics")
    assert columns["step"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(columns["q"], [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(columns["loss"], [np.nan, 0.1, 0.2])
    assert directory.columns("episodes") == {}
