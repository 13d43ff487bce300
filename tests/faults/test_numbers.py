"""Σ under hard features, a short time; and runs whose numbers explode."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deep.test_hosted import session as hosted_session
from deep.tiny import session
from faults.numbers import FEATURES, OF_LEARNER, soaked
from ube import RunError
from ube.deep.session import check_weights


@pytest.mark.parametrize("kind", FEATURES)
def test_sigma_in_float64(kind: str) -> None:
    assert soaked(kind, "linear", 20_000, seed=0)["largest_error"] < 1e-3


@pytest.mark.parametrize("kind", OF_LEARNER)
def test_sigma_of_a_learner(kind: str) -> None:
    assert soaked(kind, "learner", 20_000, seed=0)["updates"] == 20_000


def exploding(run: Any, knobs: dict[str, float], chunks: int = 2) -> str:
    """The message of a run whose knobs are turned in the middle; what it keeps is finite."""
    parts = run.run(400, 40)
    for _ in range(chunks):
        next(parts)
    run.knobs = run.knobs._replace(**{name: jnp.float32(value) for name, value in knobs.items()})
    with pytest.raises(
        RunError, match=r"diverged before step \d+ .*: lower learning_rate .* the last good state"
    ) as caught:
        list(parts)
    kept = run.last_good["learner"]
    for leaf in jax.tree.leaves((kept.values.params, kept.u, kept.counts)):
        assert np.isfinite(leaf).all()
    return str(caught.value)


@pytest.mark.parametrize("made", [session, hosted_session], ids=["compiled", "hosted"])
@pytest.mark.parametrize("knobs", [{"learning_rate": 1e30}, {"reward_unit": 1e-38}], ids=["rate", "rewards"])
def test_a_run_that_explodes_stops_with_finite_weights_kept(made: Any, knobs: dict[str, float]) -> None:
    if "reward_unit" in knobs and made is hosted_session:
        run = made("ube-1step", reward_clip=float("inf"))
        run.config = run.config.__class__(**{**vars(run.config), "reward_unit": 1e-38})
        assert "not finite" in exploding(run, knobs, chunks=0)  # it is there from the start
    else:
        assert "not finite" in exploding(made("ube-1step"), knobs)


def test_weights_that_the_last_update_of_a_chunk_spoiled_are_found(tmp_path: Path) -> None:
    """Its loss was finite; they must not become the last good state."""
    run = session("ube-1step")
    next(run.run(100, 100))
    spoiled = run.learner._replace(values=jax.tree.map(lambda leaf: leaf * jnp.inf, run.learner.values))
    with pytest.raises(RunError, match=r"diverged before step 100 \(weights of q not finite\).*of step 8, is kept"):
        check_weights(spoiled, run.config, 100, 8)
    check_weights(run.learner, run.config, 100, 8)
