"""The compiled loop: repeatable to the bit, independent of how it is cut, the same for seeds in turn and at once.

`cd tests && python -m deep.test_loop` writes golden.json anew: only after a change that is meant to change what agents do.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep.tiny import CHUNK, played, session, weight
from ube import UsageError
from ube.deep import replay as ring
from ube.deep.config import PRESETS

GOLDEN = Path(__file__).parent / "golden.json"


def trace(preset: str) -> dict[str, Any]:
    """What an agent did and learned. Rounding differs between machines and grows, so only the early part is kept whole."""
    carry, log = played(session(preset), 300)
    early = log.ended & (np.arange(300) < 100)
    return {
        "returns": np.round(np.asarray(log.episode_return)[early], 5).tolist(),
        "q": weight(carry.learner.values.params),
        "u": weight(carry.learner.u),
        "nu": float(log.column("nu")[:100].sum()),
    }


@pytest.mark.parametrize("preset", PRESETS)
def test_golden_trace(preset: str) -> None:
    golden, now = json.loads(GOLDEN.read_text())[preset], trace(preset)
    assert now["returns"] == pytest.approx(golden["returns"], abs=1e-4)
    for name in ("q", "u", "nu"):
        assert now[name] == pytest.approx(golden[name], rel=1e-3), name


def fingerprint(preset: str, seed: int = 0) -> str:
    """Of the log and all that was learned, every bit."""
    carry, log = played(session(preset, seed), 200)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((carry.learner, carry.replay, log)):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_bits_in_another_process() -> None:
    here = fingerprint("bonus")
    assert here == fingerprint("bonus")
    code = "from deep.test_loop import fingerprint; print(fingerprint('bonus'))"
    folder = Path(__file__).parents[1]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": ""}  # compiled there anew
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == here


@pytest.mark.parametrize("preset", ["dqn", "ube-1step", "boot", "ube-deep"])
def test_seeds_differ_in_weights_environment_and_exploration(preset: str) -> None:
    run = session(preset)
    one, other = (run.loop.start(jax.random.key(seed), run.knobs) for seed in (0, 1))
    kernels = [
        np.asarray(carry.learner.values.params["params"]["trunk"]["Dense_0"]["kernel"]) for carry in (one, other)
    ]
    assert (kernels[0] != kernels[1]).mean() > 0.99
    assert (one.instance.right != other.instance.right).any()
    # The same weights in the same sea with another key: other actions, and so other cells
    swapped = jax.tree.map(jnp.copy, one)._replace(key=other.key)
    first, second = (run.loop.chunk(carry, run.knobs, CHUNK, True)[0] for carry in (one, swapped))
    assert (np.asarray(first.replay.rows.action[:100]) != np.asarray(second.replay.rows.action[:100])).any()


def test_the_length_of_chunks_does_not_change_a_run() -> None:
    def episodes(chunk: int) -> tuple[np.ndarray, ...]:
        parts = [part.episodes for part in session("dqn").run(208, chunk)]
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    by_hundreds, by_fifties = episodes(100), episodes(50)
    for one, other in zip(by_hundreds, by_fifties, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(by_hundreds[0], np.arange(8, 209, 8))  # episodes of 8 steps
    np.testing.assert_array_equal(by_hundreds[2], 8)


def test_no_chunk_is_longer_than_what_sigma_bears() -> None:
    run = session("dqn", warmup=25_000, update_period=2_000)
    assert run._plan(60_000, 50_000) == [(5, False)] * 2 + [(3, False)] + [(5, True)] * 4
    assert session("dqn", warmup=7)._plan(100, 50_000) == [(7, False), (93, True)]
    assert session("dqn", warmup=100)._plan(60, 10) == [(60, False)]
    with pytest.raises(UsageError, match=r"steps=100: at least one update_period \(2000\)"):
        list(run.run(100))


def test_a_run_takes_the_steps_it_was_asked_for() -> None:
    run = session("dqn")
    parts = list(run.run(208, 100))
    assert [part.step for part in parts] == [8, 108, 208]
    assert "loss" not in parts[0].metrics  # the warm-up learns nothing
    assert parts[1].metrics["loss"] > 0
    assert parts[2].metrics["epsilon"] == pytest.approx(0.1)  # 200 steps after the warm-up
    assert int(run.learner.updates) == 200


def inverse(codes: np.ndarray, actions: np.ndarray, prior: float) -> np.ndarray:
    wide = [codes[actions == action].astype(np.float64) for action in range(2)]
    return np.linalg.inv([rows.T @ rows + np.eye(codes.shape[1]) / prior for rows in wide])


def test_sigma_is_refreshed_from_every_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    run = session("ube-1step", prior=0.5)
    chunk, seen = run.loop.chunk, []

    def noted(*args: Any) -> Any:
        carry, log, metrics = chunk(*args)
        seen.append((np.array(log.code), np.array(log.action), np.array(carry.learner.counts.sigma)))
        return carry, log, metrics

    monkeypatch.setattr(run.loop, "chunk", noted)
    for part in run.run(208, 50):
        codes, actions = (np.concatenate([one[i] for one in seen]) for i in (0, 1))
        assert (codes.shape, actions.shape) == ((part.step, 16), (part.step,))
        exact, refreshed = inverse(codes, actions, 0.5), np.asarray(run.learner.counts.sigma)
        np.testing.assert_allclose(refreshed, exact, atol=1e-6)
        np.testing.assert_allclose(seen[-1][2], exact, atol=1e-3)  # as it grew, a decision at a time
        assert (seen[-1][2] != refreshed).any()


def test_sigma_anew_from_the_replay() -> None:
    """The draws are with replacement, and so is the tolerance; unit features make a trace of all visits."""
    run = session("ube-1step", sigma_from="replay", replay_size=4_096)
    for part in run.run(208, 100):
        assert run.carry is not None
        state, rows = run.learner, run.carry.replay.rows
        codes = run.loop.learner.codes(state, rows.observation[: part.step], run.knobs)
        grams = np.asarray(state.counts.information, np.float64).sum(0)
        np.testing.assert_allclose(np.trace(grams, axis1=1, axis2=2), state.counts.visits, rtol=1e-5)
        np.testing.assert_allclose(state.counts.sigma, np.linalg.inv(grams + np.eye(16)), atol=1e-5)
        exact = inverse(np.asarray(codes), np.asarray(rows.action[: part.step]), 1.0)
        np.testing.assert_allclose(state.counts.sigma, exact, atol=0.1)


def test_seeds_at_once_agree_with_seeds_in_turn() -> None:
    run = session("ube-1step")
    loop, knobs, seeds = run.loop, run.knobs, (0, 1, 2)
    batch = loop.start_seeds(jnp.stack([jax.random.key(seed) for seed in seeds]), knobs)
    logs = []
    for _ in range(2):
        batch, log, _ = loop.chunk_seeds(batch, knobs, CHUNK, True)
        logs.append(log)
    for i, seed in enumerate(seeds):
        carry, log = played(session("ube-1step", seed), 200)
        together = jax.tree.map(lambda *parts, i=i: np.concatenate([part[i] for part in parts]), *logs)
        np.testing.assert_array_equal(together.ended, log.ended)
        np.testing.assert_allclose(together.episode_return, log.episode_return, atol=1e-5)
        np.testing.assert_allclose(together.column("u"), log.column("u"), rtol=2e-3, atol=1e-4)
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], batch.learner.values.params)
        assert weight(mine) == pytest.approx(weight(carry.learner.values.params), rel=1e-3)


def test_numbers_may_change_without_compiling_again() -> None:
    loop = session("ube-1step").loop
    before_carry, _ = played(session("ube-1step"))
    compiled = loop.chunk._cache_size()
    changes = {"beta": 5.0, "prior": 0.5, "discount": 0.5, "learning_rate": 0.1, "u_learning_rate": 0.1, "warmup": 9}
    for name, value in changes.items():
        run = session("ube-1step", **{name: value})
        assert run.loop is loop
        carry, _ = played(run)
        of_before, of_after = ((c.learner.values.params, c.learner.u) for c in (before_carry, carry))
        changed = weight(of_after) != weight(of_before)
        assert changed or name == "warmup"
    assert loop.chunk._cache_size() == compiled
    assert session("ube-1step", n=2).loop is not loop


def test_the_replay_is_a_queue_that_forgets_the_oldest() -> None:
    capacity = 7
    replay = ring.empty_replay({"x": jnp.zeros(2), "a": jnp.int32(0)}, capacity)
    naive: deque[int] = deque(maxlen=capacity)
    add, sample = jax.jit(ring.add), jax.jit(ring.sample, static_argnums=2)
    for i in range(1, 20):
        replay = add(replay, {"x": jnp.full(2, float(i)), "a": jnp.int32(i)})
        naive.append(i)
        drawn, _ = sample(replay, jax.random.key(i), 200)
        assert set(np.asarray(drawn["a"])) == set(naive)
        np.testing.assert_array_equal(drawn["x"], np.stack([drawn["a"]] * 2, 1))
    share = np.bincount(np.asarray(sample(replay, jax.random.key(0), 7_000)[0]["a"]))[13:] / 7_000
    np.testing.assert_allclose(share, 1 / 7, atol=0.03)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({preset: trace(preset) for preset in PRESETS}, indent=1) + "\n")
