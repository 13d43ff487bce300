"""What `train` sets before JAX is in use, and what it leaves to the user."""

import os
import subprocess
import sys

import pytest

SHOW = """
import jax
from jax._src import xla_bridge
import ube.runs.training
from ube.envs import make
make("atari/pong")
assert not xla_bridge._backends, "in use before it was set up"
ube.runs.training.set_up_jax()
print(jax.config.values["jax_cpu_enable_async_dispatch"], jax.config.jax_compilation_cache_dir)
"""


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, "False /caches/ube/jax"),
        ({"JAX_CPU_ENABLE_ASYNC_DISPATCH": "1", "JAX_COMPILATION_CACHE_DIR": "/mine"}, "True /mine"),
    ],
)
def test_set_before_jax_is_in_use_unless_the_user_has(given: dict[str, str], shown: str) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    env = ours | {"XDG_CACHE_HOME": "/caches"} | given
    done = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (shown, 0), done.stderr
