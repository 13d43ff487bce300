"""The loop outside of JAX: against a plain loop of the same learner, on games that end, are cut and lose lives."""

import dataclasses
import threading
import time
from typing import Any

import jax
import numpy as np
import pytest

from ube import RunError, UsageError
from ube.deep import hosted_session
from ube.deep.config import agent_config
from ube.deep.hosted import joined, stacked
from ube.deep.hosted_session import HostedSession
from ube.deep.learner import LearnerState, Transition
from ube.envs.contract import HostedEnvironment, HostedStep

SMALL = {
    "replay_size": 200, "batch_size": 4, "warmup": 12, "update_period": 4, "target_period": 3, "hidden": (8,), "q_steps": 1,
}  # fmt: skip
SIDE, STACK = 6, 2


class Corridors:
    """Frames of noise with the clock in a corner. Action 1 pays; every 5th step loses a life, every 13th ends the game,
    and every 29th cuts it off."""

    def __init__(self, n_envs: int):
        self.n_envs = n_envs

    def reset(self, seed: int) -> np.ndarray:
        self.rng = [np.random.default_rng((seed, env)) for env in range(self.n_envs)]
        self.clock = np.zeros(self.n_envs, int)
        return np.stack([self.draw(env) for env in range(self.n_envs)])

    def draw(self, env: int) -> np.ndarray:
        frame = self.rng[env].integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
        frame[0, 0] = self.clock[env] % 256
        return frame[..., None]

    def step(self, actions: np.ndarray) -> HostedStep:
        self.clock += 1
        terminated, truncated = self.clock % 13 == 0, self.clock % 29 == 0
        last = np.stack([self.draw(env) for env in range(self.n_envs)])
        ended = terminated | truncated
        frame = np.stack([self.draw(env) if ended[env] else last[env] for env in range(self.n_envs)])
        reward = np.where(actions == 1, 2.5, 0.0)
        return HostedStep(frame, last, reward, terminated, truncated & ~terminated, (self.clock % 5 == 0) & ~ended)

    def close(self) -> None: ...


ENV = HostedEnvironment(
    "Corridors", (SIDE, SIDE, STACK), np.dtype(np.uint8), np.zeros((SIDE, SIDE, STACK)), np.full((SIDE, SIDE, STACK), 255.0),
    3, Corridors, (SIDE, SIDE, 1), STACK, 4, lambda seed, actions: np.zeros((len(actions), 9, 9, 3), np.uint8), 100, 80, 40,
    defaults={"reward_clip": 1.0},
)  # fmt: skip


def session(agent: str, seed: int = 0, n_envs: int = 1, **changes: Any) -> HostedSession:
    """n = 3 where the preset's is 150, since games have 13 steps at most; noise that is learned, to be tested somewhere."""
    own = {"ube-nstep": {"n": 3}, "ube-deep": {"noise": "learned"}}.get(agent, {})
    overrides = SMALL | own | changes
    return HostedSession(ENV, agent_config(agent, overrides), seed, n_envs=n_envs, restart_every=80)


def everything(run: HostedSession) -> dict[str, bytes]:
    tree = run.snapshot() | {"frames": run.replay.frames}
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


def finished(run: HostedSession, steps: int = 200, chunk: int = 40) -> HostedSession:
    list(run.run(steps, chunk))
    return run


# ---------------------------------------------------------------- the plain loop


def plain_loop(steps: int, chunk: int, agent: str) -> tuple[LearnerState, list[Any]]:
    """The same run without threads, dicts of fields or merged steps; one game."""
    other = session(agent)
    learner, knobs, config, keys = other.loop.learner, other.knobs, other.config, other.keys
    state = learner.init(keys["start"], knobs)
    noise = learner.draw_noise(jax.random.split(jax.random.fold_in(keys["start"], 1), 1)[0])
    state = state._replace(member=noise[0], zeta=noise[1])
    act, observe, after_step, u_at_end = (
        jax.jit(getattr(learner, n)) for n in ("act", "observe", "after_step", "u_at_end")
    )
    targets, improve = jax.jit(learner.targets), jax.jit(learner.improve)
    replay, games = other.replay, Corridors(1)
    stack = np.zeros((STACK, SIDE, SIDE, 1), np.uint8)
    heard, length, ends, total = (np.float32(0), np.float32(0), np.bool_(False), np.bool_(False)), 0, [], 0.0
    networks = state  # that act and give targets

    def seen(stack: np.ndarray) -> np.ndarray:
        return np.moveaxis(stack[..., 0], 0, -1)

    def batch(number: int) -> Any:
        sample = replay.sample(config.batch_size, np.random.default_rng((0, number)))
        now, following = stacked(sample.frames, sample.age, STACK)
        _, batch_key = jax.random.split(keys["batch"])
        code = next_code = np.zeros((config.batch_size, 0))
        if learner.counts is not None and learner.counts.stores_code:
            x, y = learner.scaled(now), learner.scaled(following)
            code, next_code = learner.counts.code(state.counts, x, x), learner.counts.code(state.counts, y, y)
        ones = np.ones((config.batch_size, 1), np.float32)
        rows = Transition(now, sample.action, sample.reward, sample.continues, following, code, next_code, ones)
        whole = state._replace(**{name: getattr(networks, name) for name in (*learner.improved, *learner.fixed)})
        return rows, targets(whole, rows, None, jax.random.fold_in(batch_key, number), knobs)

    ahead = None
    for step in range(steps):
        if step % 80 == 0:  # all begins anew
            if length:
                replay.cut(0, stack[-1])
                cut = not heard[2]
                last = (
                    u_at_end(networks_in(state, networks, learner), seen(stack), end_key(keys, step), knobs)
                    if cut and learner.u_from_stream
                    else 0.0
                )
                heard = (heard[0], np.float32(heard[1] + last), np.bool_(True), np.bool_(heard[3] or cut))
            first = games.reset(int(np.random.SeedSequence((0, step // 80)).generate_state(1)[0]))[0]
            stack, length, total = np.zeros_like(stack), 0, 0.0
            stack[-1] = first
        if step % 4 == 0 and step >= config.warmup and (ahead is None or step % chunk == 0):
            networks = state
            ahead = batch(int(state.updates))
        close_key, act_key = jax.random.split(jax.random.fold_in(keys["step"], step), (1, 2))[0]
        playing = networks_in(state, networks, learner)
        playing = after_step(playing, *heard, close_key, knobs)
        choice = act(playing, seen(stack), act_key, knobs)
        playing, _ = observe(playing, choice, knobs)
        state = networks_in(playing, state, learner)
        after = games.step(np.asarray(choice.action)[None])
        bonus = float(learner.learned_reward(np.float32(0), choice, knobs))
        over = after.terminated[0] | after.life_lost[0]
        replay.add(0, stack[-1], int(choice.action), min(after.reward[0], 1.0) + bonus, not over)
        length, total = length + 1, total + after.reward[0]
        stack = np.concatenate([stack[1:], after.last_frame])
        last_u = 0.0
        if after.truncated[0]:
            replay.cut(0, after.last_frame[0])
            if learner.u_from_stream:
                last_u = u_at_end(networks_in(state, networks, learner), seen(stack), end_key(keys, step + 1), knobs)
        heard = (
            np.float32(after.reward[0]),
            np.float32(last_u),
            np.bool_(over | after.truncated[0]),
            after.truncated[0],
        )
        if after.terminated[0] or after.truncated[0]:
            if after.terminated[0]:
                replay.begin(0)
            ends.append((step + 1, total, length))
            stack, length, total = np.zeros_like(stack), 0, 0.0
            stack[-1] = after.frame[0]
        if step % 4 == 3:  # the round is over: its update counts from now on
            later = (
                batch(int(state.updates) + (ahead is not None))
                if step + 1 >= config.warmup and (step + 1) % chunk
                else None
            )
            if ahead is not None:
                state = learner.copied(improve(state, *ahead, knobs)[0])
            networks, ahead = state, later
    return state, ends


def networks_in(state: LearnerState, networks: LearnerState, learner: Any) -> LearnerState:
    return state._replace(**{name: getattr(networks, name) for name in (*learner.improved, *learner.fixed)})


def end_key(keys: Any, step: int) -> Any:
    return jax.random.split(jax.random.fold_in(keys["end"], step), 1)[0]


SLOW = [pytest.param(agent, marks=pytest.mark.slow) for agent in ("dqn", "bonus")]


@pytest.mark.parametrize("agent", ["ube-nstep", "ube-deep", *SLOW])
def test_a_run_is_that_of_a_plain_loop(agent: str) -> None:
    run = session(agent)
    parts = list(run.run(200, 40))
    state, ends = plain_loop(200, 40, agent)
    learned, expected = (
        jax.tree.leaves((s.values.params, s.values.target, s.u, s.counts, s.awaited)) for s in (run.learner, state)
    )
    for mine, theirs in zip(learned, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-5)
    columns = [np.concatenate(column) for column in zip(*(part.episodes for part in parts), strict=True)]
    assert np.transpose(columns).tolist() == [list(map(float, end)) for end in ends]


# ---------------------------------------------------------------- repeatable


@pytest.mark.parametrize("agent", ["ube-nstep", "boot", "ube-deep"])
def test_a_run_repeats_itself_however_slow_the_gradient_is(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = everything(finished(session(agent)))
    improved = HostedSession._improved

    def slow(self: HostedSession, *args: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(0.01)
        return improved(self, *args)

    monkeypatch.setattr(HostedSession, "_improved", slow)
    assert everything(finished(session(agent))) == first


def test_other_seeds_are_other_runs() -> None:
    one, two = (finished(session("dqn", seed=seed), 40) for seed in (0, 1))
    for name in ("replay", "actions", "trained"):
        mine, theirs = (jax.tree.leaves(run.snapshot()[name]) for run in (one, two))
        assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    ("agent", "stop", "n_envs"),
    [("dqn", 40, 1), ("ube-nstep", 40, 1), ("ube-nstep", 80, 1), ("boot", 120, 1), ("ube-deep", 120, 1),
     ("ube-nstep", 120, 2), ("boot", 120, 8)],
)  # fmt: skip
def test_a_run_goes_on_as_if_it_had_never_stopped(
    agent: str, stop: int, n_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_session, "REFRESH", 48)
    whole = everything(finished(session(agent, n_envs=n_envs)))
    before = finished(session(agent, n_envs=n_envs), stop)
    after = session(agent, n_envs=n_envs)
    after.replay.frames[...] = before.replay.frames
    after.restore(jax.tree.map(np.array, before.snapshot()))
    assert everything(finished(after)) == whole


def test_games_that_do_not_repeat_themselves_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = finished(session("dqn"), 40)
    monkeypatch.setattr(Corridors, "draw", lambda self, env: np.zeros((SIDE, SIDE, 1), np.uint8))
    with pytest.raises(RunError, match="Corridors does not repeat itself from its seed"):
        session("dqn").restore(before.snapshot())


@pytest.mark.parametrize(("agent", "n_envs"), [("ube-nstep", 2), ("boot", 8)])
def test_several_games_side_by_side(agent: str, n_envs: int) -> None:
    run = finished(session(agent, n_envs=n_envs))
    updates = sum(1 for step in range(0, 200, 4) if step // max(4, n_envs) * max(4, n_envs) >= 12)
    assert (run.step, int(run.learner.updates), int(run.lived["steps"])) == (200, updates, 200)
    if agent == "ube-nstep":
        counts = run.lived["counts"]
        codes, actions = run.codes[:200].astype(np.float64), run.coded_actions[:200]
        for action in range(3):
            taken = codes[actions == action]
            direct = np.linalg.inv(taken.T @ taken + np.eye(codes.shape[1]) / run.config.prior)
            np.testing.assert_allclose(counts.sigma[action], direct, atol=2e-4)
        assert counts.visits.sum() == 200


@pytest.mark.parametrize("agent", ["ube-1step", "ube-deep"])
def test_each_game_has_the_noise_of_its_own_episode(agent: str) -> None:
    """Where an episode is cut off (u from the stream), and in targets (u from replay, as the first game has it)."""
    full = {"optimism": "full", "levels_wait": False, "epsilon_start": 0.0, "epsilon_end": 0.0}
    run = finished(session(agent, n_envs=2, policy="noise-per-episode", beta=100.0, **full), 120)
    learner, knobs = run.loop.learner, run.knobs
    lived = run.lived | {"zeta": np.array([3.0, -3.0], np.float32)}
    seen = np.random.default_rng(0).integers(0, 256, (2, STACK, SIDE, SIDE, 1), dtype=np.uint8)
    found = run.loop.u_at_end(run.trained, lived, seen, run.keys["end"], 7, knobs)
    keys = jax.random.split(jax.random.fold_in(run.keys["end"], 7), 2)
    each = [
        learner.u_at_end(run.learner._replace(zeta=zeta), joined(seen)[game], keys[game], knobs)
        for game, zeta in enumerate(lived["zeta"])
    ]
    np.testing.assert_allclose(found, each, rtol=1e-5)
    both = [learner.u_at_end(run.learner._replace(zeta=z), joined(seen)[0], keys[0], knobs) for z in lived["zeta"]]
    assert both[0] > both[1]  # ζ > 0 takes the action with the largest u, ζ < 0 the one with the smallest
    if agent == "ube-deep":
        sample = run.replay.sample(8, np.random.default_rng(0))
        (_, first), (_, second) = (
            run.loop.targets(run.trained, run.lived | {"zeta": zetas}, sample, run.keys["batch"], 0, knobs)
            for zetas in (lived["zeta"], lived["zeta"][::-1])
        )
        assert (first.u > second.u).any()
        assert (first.u >= second.u).all()


@pytest.mark.parametrize("n_envs", [1, 8])
def test_sigma_is_refreshed_from_every_decision(n_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_session, "REFRESH", 50)  # as many as make whole rounds: 52, or 56
    run = session("ube-nstep", n_envs=n_envs)
    refresh, seen = run._refresh, []

    def noted() -> None:
        before = np.array(run.lived["counts"].sigma)
        seen.append((run.codes.copy(), run.coded_actions.copy()))
        refresh()
        codes, actions = (np.concatenate(part) for part in zip(*seen, strict=True))
        wide = [codes[actions == action].astype(np.float64) for action in range(3)]
        exact = np.linalg.inv([rows.T @ rows + np.eye(codes.shape[1]) for rows in wide])
        np.testing.assert_allclose(run.lived["counts"].sigma, exact, atol=1e-6)
        np.testing.assert_allclose(before, exact, atol=2e-4)  # as it grew, a decision at a time

    monkeypatch.setattr(run, "_refresh", noted)
    finished(run)
    assert [len(codes) for codes, _ in seen] == [{1: 52, 8: 56}[n_envs]] * 3


def test_sigma_anew_from_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit features make a trace of all visits."""
    monkeypatch.setattr(hosted_session, "REFRESH", 100)
    run = session("ube-nstep", sigma_from="replay")
    finished(run)
    counts = run.lived["counts"]
    grams = np.asarray(counts.information, np.float64).sum(0)
    np.testing.assert_allclose(np.trace(grams, axis1=1, axis2=2), counts.visits, rtol=1e-5)
    np.testing.assert_allclose(counts.sigma, np.linalg.inv(grams + np.eye(grams.shape[-1])), atol=1e-5)


@pytest.mark.parametrize(("args", "message"), [({"n_envs": 3}, "n_envs=3: a divisor"), ({"n_envs": 0}, "n_envs=0")])
def test_bad_numbers_of_games(args: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        session("dqn", **args)


# ---------------------------------------------------------------- evaluation


class Counting(Corridors):
    """Games of 13 and of 29 - 26 = 3 steps, and so on: the returns of each say how long they were."""

    def step(self, actions: np.ndarray) -> HostedStep:
        return super().step(actions)._replace(reward=np.ones(self.n_envs))


@pytest.fixture
def three_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_session, "EVALUATION_ENVS", 3)


@pytest.mark.usefixtures("three_at_once")
def test_games_that_begin_within_the_budget_are_played_to_their_end() -> None:
    env = dataclasses.replace(ENV, open=Counting, longest=13)
    run = HostedSession(env, agent_config("dqn", SMALL), 0, restart_every=80)
    # Three games side by side, which all end at steps 13, 26, 29 and 39 of each: after 39 decisions, 78, 87, …
    assert run.play(run.learner, steps=39, own=False, seed=1).episode_length.tolist() == [13] * 3
    played = run.play(run.learner, steps=79, own=False, seed=1)
    assert played.episode_length.tolist() == [13] * 6 + [3] * 3
    np.testing.assert_array_equal(played.episode_return, played.episode_length)
    assert run.play(run.learner, 5, own=False, seed=1).episode_length.tolist() == [13] * 5
    assert run.play(run.learner, 8, own=True, seed=1).episode_length.tolist() == [13] * 6 + [3] * 2


class Endless(Counting):
    def step(self, actions: np.ndarray) -> HostedStep:
        never = np.zeros(self.n_envs, bool)
        return super().step(actions)._replace(terminated=never, truncated=never)

    def restart(self, env: int) -> np.ndarray:
        return self.draw(env)


@pytest.mark.usefixtures("three_at_once")
@pytest.mark.parametrize(("steps", "lengths"), [(1, [30]), (39, [30, 30]), (61, [30] * 3), (91, [30] * 6)])
def test_games_without_end_leave_little_more_than_the_budget(steps: int, lengths: list[int]) -> None:
    """No more side by side than the budget has room for."""
    run = HostedSession(dataclasses.replace(ENV, open=Endless, longest=30), agent_config("dqn", SMALL), 0)
    assert run.play(run.learner, steps=steps, own=True, seed=1).episode_length.tolist() == lengths
    assert sum(lengths) <= 2 * steps + 30


def test_evaluation_repeats_and_changes_nothing() -> None:
    run = finished(session("ube-nstep"), 80)
    before = everything(run)
    first, again = (run.play(run.learner, 6, own=True, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.episode_return, again.episode_return)
    assert everything(run) == before
    list(run.run(160, 40))
    assert everything(run) == everything(finished(session("ube-nstep"), 160))
