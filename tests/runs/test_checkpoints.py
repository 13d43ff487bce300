"""Checkpoints: whole or absent, and a run that goes on is the run that never stopped."""

import dataclasses
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deep.test_hosted import ENV, SMALL
from deep.tiny import SEA
from deep.tiny import SMALL as SMALL_SEA
from ube import RunError, UsageError, machine
from ube.deep.frames import FrameReplay
from ube.deep.hosted_session import HostedSession
from ube.machine import free_memory, room_needed
from ube.runs import Progress, Run, Schedule, checkpoints, load, train
from ube.runs.checkpoints import Checkpoints

SCHEDULE = Schedule(evaluate_every=80, evaluation_steps=20, checkpoint_minutes=1e-9)
STEPS = 240


@pytest.fixture(scope="module", autouse=True)
def made_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ube.runs.plan.make", lambda env_id, **args: {"sea": SEA, "corridors": ENV}[env_id])
        patch.setattr(checkpoints, "SEGMENT", 32)
        yield


def trained(out: Path, steps: int = STEPS, agent: str = "ube-nstep", env: str = "corridors", **more: Any) -> Run:
    mine = {"overrides": SMALL if env == "corridors" else SMALL_SEA, "chunk": 40, "schedule": SCHEDULE, "say": str}
    return train(env, agent, steps, 3, out=out, **(mine | more))


def contents(run: Run) -> dict[str, Any]:
    """All that a run leaves, but for how fast it was."""
    rows = {name: run.directory.columns(name) for name in ("episodes", "metrics", "evaluations")}
    rows["metrics"] = {name: column for name, column in rows["metrics"].items() if "per_second" not in name}
    lists = {name: {key: column.tolist() for key, column in columns.items()} for name, columns in rows.items()}
    kept = {path.name: path.read_bytes() for path in sorted(run.path.glob("*.safetensors"))}
    return lists | kept


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return repr(one) == repr(other)  # NaN is like NaN


class Killed(BaseException):
    pass


def killed_at(step: int) -> Any:
    def callback(now: Progress) -> None:
        if now.step >= step:
            raise Killed

    return callback


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("runs") / "whole")


@pytest.mark.parametrize("step", [40, 200, 240])
def test_a_run_that_was_killed_goes_on_as_if_nothing_had_happened(whole: Run, tmp_path: Path, step: int) -> None:
    """What came after the last checkpoint was written to the rows already, and is forgotten."""
    with pytest.raises(Killed):
        trained(tmp_path / "run", callback=killed_at(step))
    assert same(contents(trained(tmp_path / "run", resume=True)), contents(whole))


@pytest.mark.parametrize("agent", ["ube-1step", "boot"])
def test_a_compiled_run_goes_on_too(tmp_path: Path, agent: str) -> None:
    straight = trained(tmp_path / "straight", 208, agent, "sea")
    with pytest.raises(Killed):
        trained(tmp_path / "run", 208, agent, "sea", callback=killed_at(128))
    run = trained(tmp_path / "run", 208, agent, "sea", resume=True)
    assert same(contents(run), contents(straight))
    said: list[str] = []
    again = trained(run.path, 208, agent, "sea", resume=True, callback=killed_at(0), say=said.append)
    assert said == [f"{run.path} is finished"]
    assert same(contents(again), contents(straight))


@pytest.mark.parametrize(
    ("agent", "env", "steps", "stop"), [("ube-1step", "sea", 208, 128), ("ube-nstep", "corridors", 240, 160)]
)
def test_a_callback_stops_a_run_that_then_goes_on(tmp_path: Path, agent: str, env: str, steps: int, stop: int) -> None:
    seen: list[Progress] = []

    def callback(now: Progress) -> bool:
        seen.append(now)
        return now.step >= stop

    never = dataclasses.replace(SCHEDULE, checkpoint_minutes=1e9)
    straight = trained(tmp_path / "straight", steps, agent, env, schedule=never)
    run = trained(tmp_path / "run", steps, agent, env, schedule=never, callback=callback)
    reached = seen[-1].step
    assert stop <= reached < steps
    assert [now.step for now in seen] == run.metrics["step"].tolist()
    assert {now.steps for now in seen} == {steps}
    assert [now.metrics["q"] for now in seen] == run.metrics["q"].tolist()
    returns = np.concatenate([now.episodes.episode_return for now in seen])
    np.testing.assert_array_equal(returns, run.episodes["episode_return"])
    assert [int(now.agent.state.steps) for now in seen] == [
        now.step for now in seen
    ]  # none was changed by what followed
    observation = np.zeros(run.agent.env.observation_shape)
    for mine, theirs in zip(seen[-1].agent.uncertainty(observation), run.agent.uncertainty(observation), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [int(folder.name[:12]) for folder in folders(run.path)] == [reached]
    assert same(contents(trained(run.path, steps, agent, env, schedule=never, resume=True)), contents(straight))


def test_a_finished_run_is_not_run_again_but_may_go_on_for_longer(whole: Run, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", 160)
    before = contents(run)
    assert same(contents(trained(tmp_path / "run", 160, resume=True)), before)
    assert same(contents(trained(tmp_path / "run", STEPS, resume=True)), contents(whole))


def test_a_finished_run_without_checkpoints_is_never_begun_again(whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    assert same(contents(trained(tmp_path / "run", resume=True, callback=killed_at(0))), contents(whole))
    with pytest.raises(UsageError, match=r"run is finished, and keeps no checkpoint: train for longer in a new run"):
        trained(tmp_path / "run", STEPS + 80, resume=True)
    assert same(contents(load(tmp_path / "run")), contents(whole))


def test_a_run_that_diverges_keeps_its_last_good_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    improved = HostedSession._improved

    def blown_up(self: HostedSession, trained: Any, batches: Any) -> Any:
        trained, metrics = improved(self, trained, batches)
        if int(trained["updates"]) == 20:  # after step 88
            trained = trained | {"values": jax.tree.map(lambda leaf: np.nan * leaf, trained["values"])}
        return trained, metrics

    monkeypatch.setattr(HostedSession, "_improved", blown_up)
    message = r"diverged before step 120 \(.*q.*\): .* the last good state, of step 80, is kept in /"
    with pytest.raises(RunError, match=message):
        trained(tmp_path / "run", schedule=Schedule(evaluate_every=80, evaluation_steps=20))
    kept = load(tmp_path / "run").agent.state
    assert int(kept.steps) == 80
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get((kept.values.params, kept.counts))))


def test_resume_without_a_run_starts_one(whole: Run, tmp_path: Path) -> None:
    assert same(contents(trained(tmp_path / "run", resume=True)), contents(whole))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overrides": SMALL | {"beta": 0.5}}, r"was begun with agent\.beta=0\.01, not 0\.5"),
        ({"agent": "dqn"}, r"was begun with agent\.name=ube-nstep, not dqn"),
        ({"env_args": {"size": 3}}, r"was begun with env_args\.size=None, not 3"),
        ({"chunk": 80}, r"was begun with chunk=40, not 80"),
    ],
)
def test_a_run_goes_on_only_with_what_it_began_with(whole: Run, changes: dict[str, Any], message: str) -> None:
    before = contents(whole)
    with pytest.raises(UsageError, match=message):
        trained(whole.path, resume=True, **changes)
    assert same(contents(whole), before)


def test_the_versions_of_every_start_are_kept(whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(whole.path, tmp_path / "run")
    first = whole.config["versions"]
    assert {"jaxlib", "gymnasium"} <= set(first)
    for numpy in (first["numpy"], "9.9", "9.9"):
        monkeypatch.setattr("ube.runs.plan.versions", lambda numpy=numpy: first | {"numpy": numpy})
        run = trained(tmp_path / "run", resume=True)
    assert (run.config["versions"], run.config["resumed_with"]) == (first, [first | {"numpy": "9.9"}])


def test_a_directory_has_one_run_at_a_time(tmp_path: Path) -> None:
    def second(now: Progress) -> None:
        with pytest.raises(UsageError, match=rf"is being written by another run \(process {os.getpid()}\)"):
            trained(tmp_path / "run", resume=True)
        raise Killed

    with pytest.raises(Killed):
        trained(tmp_path / "run", callback=second)


def test_evaluations_are_kept_game_by_game(whole: Run) -> None:
    rows = load(whole.path).evaluations
    assert sorted(set(zip(rows["step"].tolist(), rows["policy"].tolist(), strict=True))) == [
        (step, policy) for step in (80, 160, 240) for policy in ("greedy", "own")
    ]
    assert set(whole.last_evaluation()) == {"greedy", "own"}
    assert whole.evaluate(3).episode_length.tolist() == [13, 13, 13]


# ---------------------------------------------------------------- damage


def folders(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("*-*"))


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with pytest.raises(Killed):
        trained(tmp_path / "run", callback=killed_at(200))
    assert [folder.name[:12] for folder in folders(tmp_path / "run")] == ["000000000120", "000000000160"]
    return tmp_path / "run"


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("what", "how"), [("state.safetensors", "spoilt"), ("state.safetensors", "gone"), ("manifest.json", "cut")]
)
def test_after_damage_the_checkpoint_before_serves(stopped: Path, whole: Run, what: str, how: str) -> None:
    path = folders(stopped)[-1] / what
    if how == "spoilt":
        spoil(path)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    said: list[str] = []
    run = trained(stopped, resume=True, say=said.append)
    assert "is damaged" in said[0]
    assert what in said[0]
    assert "going back to the one before" in said[0]
    assert said[1] == "going on from step 120"
    assert same(contents(run), contents(whole))


def test_a_damaged_frame_is_noticed(stopped: Path) -> None:
    for path in (stopped / "checkpoints" / "frames").iterdir():
        spoil(path)
    with pytest.raises(
        RunError, match=r"is damaged \(\d+-\d+-\d+\.bin is not what was written\), and there is none before"
    ):
        trained(stopped, resume=True)


def test_a_checkpoint_is_absent_until_it_is_whole(stopped: Path, monkeypatch: pytest.MonkeyPatch, whole: Run) -> None:
    """The disk fills up while one is written."""
    before = {folder.name for folder in folders(stopped)}

    def full(*_: Any) -> str:
        raise OSError(28, "No space left on device", "state.safetensors")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_arrays", full)
        with pytest.raises(OSError, match="No space left"):
            trained(stopped, resume=True)
    assert {folder.name for folder in folders(stopped)} == before
    assert same(contents(trained(stopped, resume=True)), contents(whole))


# ---------------------------------------------------------------- the frames


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    n_envs=st.integers(1, 2),
    slots=st.sampled_from([64, 70]),
)
def test_frames_come_back_and_only_what_changed_is_written(parts: list[int], n_envs: int, slots: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = Checkpoints(Path(folder))
        replay, rng = FrameReplay(slots * n_envs, (2, 2), 2, n_envs), np.random.default_rng(0)
        written: dict[str, int] = {}
        for step, part in enumerate(parts):
            changed: set[tuple[int, int]] = set()
            for _ in range(part):
                for env in range(n_envs):
                    changed.add((env, int(replay.added[env]) % slots // 32))
                    replay.add(env, rng.integers(0, 256, (2, 2)), 0, 0.0, True)
            store.save(step, {"a": np.arange(step)}, replay, {"n": step})
            now = {path.name: path.stat().st_mtime_ns for path in (Path(folder) / "checkpoints" / "frames").iterdir()}
            fresh = {name for name, at in now.items() if written.get(name) != at}
            assert {tuple(int(word) for word in name.split("-")[:2]) for name in fresh} == changed
            written = now
            again = FrameReplay(slots * n_envs, (2, 2), 2, n_envs)
            found = store.restore({"a": np.arange(step)}, again, pytest.fail)
            assert found is not None
            assert found[1] == {"n": step}
            np.testing.assert_array_equal(again.frames, replay.frames)
        assert len(folders(Path(folder))) == min(2, len(parts))


# ---------------------------------------------------------------- room


def test_too_little_memory_and_disk_are_said_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_memory() > 1e8  # type: ignore[operator]
    monkeypatch.setattr("ube.machine.free_memory", lambda: 8.0e9)
    big = SMALL | {"replay_size": 200_000_000}
    with pytest.raises(
        UsageError, match=r"replay_size=200000000 needs 10\.5 GB of memory, and 8\.0 GB are free: --set"
    ):
        trained(tmp_path / "run", overrides=big)
    monkeypatch.setattr("ube.machine.free_memory", lambda: None)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2.0e9}))
    with pytest.raises(UsageError, match=r"need 10\.0 GB of disk, and 2\.0 GB are free in .*run: .*, or another place"):
        trained(tmp_path / "run", overrides=big)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    rare = dataclasses.replace(SCHEDULE, checkpoint_minutes=1e9)
    with pytest.raises(UsageError, match=r"need 28\.0 GB of disk, and 2\.0 GB"):
        trained(tmp_path / "run", overrides=big, schedule=rare)


@pytest.mark.parametrize(("between", "n_envs"), [(64, 1), (50, 1), (333, 1), (1_000, 1), (30, 4), (200, 4)])
def test_room_is_enough_for_three_checkpoints_and_what_they_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: int, n_envs: int
) -> None:
    """`between` new frames of each environment, 640 of which the replay holds, 32 in a file."""
    replay, shape, most = FrameReplay(640 * n_envs, (20, 20), 2, n_envs), (20, 20), 0
    forget = Checkpoints._forget_older

    def measured(store: Checkpoints) -> None:
        nonlocal most
        most = max(most, sum(path.stat().st_size for path in (store.path / "frames").iterdir()))
        forget(store)

    monkeypatch.setattr(Checkpoints, "_forget_older", measured)
    monkeypatch.setattr(machine, "SEGMENT", 32)
    store = Checkpoints(tmp_path)
    for step in range(3 + 1_920 // between):
        for _ in range(between):
            for env in range(n_envs):
                replay.add(env, np.zeros(shape), 0, 0.0, True)
        store.save(step, {}, replay, {})
    minutes = n_envs * between / machine.PACE / 60
    counted = room_needed(640 * n_envs, shape, checkpoint_minutes=minutes, n_envs=n_envs).disk - 1e9
    assert most <= counted <= 1.03 * (most + 4 * n_envs * 32 * 400)  # a frame counts nine bytes more


def test_a_run_that_goes_on_needs_room_but_for_what_it_has_written(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = sum(path.stat().st_size for path in (stopped / "checkpoints").rglob("*") if path.is_file())
    needed = room_needed(
        SMALL["replay_size"], ENV.frame_shape, ENV.observation_dtype, checkpoint_minutes=SCHEDULE.checkpoint_minutes
    )
    monkeypatch.setattr("ube.machine.free_memory", lambda: needed.memory - 1)
    with pytest.raises(UsageError, match="of memory, and"):
        trained(stopped, resume=True)
    monkeypatch.setattr("ube.machine.free_memory", lambda: needed.memory)
    for missing, enough in ((1, False), (0, True)):
        free = needed.disk - written - missing
        monkeypatch.setattr("ube.machine.free_disk", lambda out, free=free: free)
        with nullcontext() if enough else pytest.raises(UsageError, match="of disk, and"):
            trained(stopped, resume=True)


def test_a_run_does_not_go_on_to_less_than_it_has_done(stopped: Path) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(UsageError, match=r"steps=120: .*run has come to step 160 already; ask for more"):
        trained(stopped, 120, resume=True)
    assert before == {path: path.read_bytes() for path in before}
    assert trained(stopped, 200, resume=True).config["steps"] == 200


def test_ctrl_c_stops_after_the_chunk_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(now: Progress) -> None:
        if now.step == 80:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background
    never = Schedule(evaluate_every=80, evaluation_steps=20, checkpoint_minutes=1e9)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", callback=interrupt, schedule=never)
    assert [folder.name[:12] for folder in folders(tmp_path / "run")] == ["000000000080"]
    assert signal.getsignal(signal.SIGINT) is before
