"""Our Atari loop as a contender: `python -m benchmarks.atari_contenders SPEC`, see benchmarks/worker.py."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import worker
from benchmarks.training_contenders import CHUNKS, chunks_of, config_of
from ube.deep.hosted_session import HostedSession
from ube.envs import HostedEnvironment, make
from ube.runs.jax_setup import set_up_jax


def build(spec: worker.Spec) -> Callable[[], int]:
    set_up_jax()
    env, config = make(f"atari/{spec['game']}"), config_of(spec)
    assert isinstance(env, HostedEnvironment)
    session = HostedSession(env, config, seed=0)
    for _ in session.run(spec["warmup"], spec["warmup"]):
        pass
    return chunks_of(session.run(CHUNKS * spec["chunk"], spec["chunk"]), session.step)


if __name__ == "__main__":
    worker.serve(build)
