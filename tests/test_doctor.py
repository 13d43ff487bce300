"""`ube doctor`: what is there is tried, what fails has a remedy, what is absent is explained."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from ube import doctor
from ube.cli import main
from ube.doctor import Check, Finding, packages, tried

PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]


def test_light_checks_really_run() -> None:
    found = {one.what: one for one in tried(["numba", "matplotlib", "gymnasium"])}
    assert {one.state for one in found.values()} == {"ok"}
    assert found["numba"].detail.startswith("compiles")
    assert all(one.seconds is not None and one.remedy == "" for one in found.values())


BROKEN = """
import os, time
import ube.doctor as doctor
from ube.doctor import Check

def wrong():
    print("what a package says")
    raise ImportError("libcuda.so.1: cannot open\\nmore")

doctor.CHECKS.update({
    "wrong": Check(wrong, "mend it"),
    "deadly": Check(lambda: os.abort(), "bury it"),
    "fine": Check(lambda: "well", ""),
    "slow": Check(lambda: time.sleep(100), "be patient"),
})
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that fail in each way, also in the process that tries them."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    for name, remedy in (("wrong", "mend it"), ("deadly", "bury it"), ("fine", ""), ("slow", "be patient")):
        monkeypatch.setitem(doctor.CHECKS, name, Check(lambda: "", remedy))


@pytest.mark.usefixtures("broken")
def test_what_fails_has_a_remedy_and_stops_no_other() -> None:
    found = [(one.what, one.state, one.detail, one.remedy) for one in tried(["wrong", "deadly", "fine"])]
    assert found == [
        ("wrong", "fails", "ImportError: libcuda.so.1: cannot open", "mend it"),
        ("deadly", "fails", "took the process with it", "bury it"),
        ("fine", "ok", "well", ""),
    ]


@pytest.mark.usefixtures("broken")
def test_what_takes_too_long_is_given_up() -> None:
    (slow,) = tried(["slow"], patience=3.0)
    assert (slow.state, slow.detail, slow.remedy) == ("fails", "not done after 3 s", "be patient")


def test_every_extra_is_looked_for_and_its_command_is_real() -> None:
    offered = {name for name in PYPROJECT["optional-dependencies"] if name not in ("dev", "docs")}
    assert set(doctor.EXTRAS) == offered
    for extra, package in doctor.EXTRAS.items():
        assert any(line.startswith(package) for line in PYPROJECT["optional-dependencies"][extra])
    base = {line.split("=")[0].rstrip("><~!") for line in PYPROJECT["dependencies"]}
    assert set(doctor.BASE) - {"jaxlib"} <= base


def test_what_is_missing_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name in ("flax", "ray") else "1.2")
    found = {one.what: one for one in packages()}
    assert (found["flax"].state, found["flax"].detail) == ("fails", "missing")
    assert "pip install 'flax'" in found["flax"].remedy
    assert (found["extra cluster"].state, found["extra cluster"].remedy) == ("absent", "pip install 'ube-rl[cluster]'")
    assert (found["jax"].state, found["jax"].detail) == ("ok", "1.2")
    assert "cluster" not in doctor.names()
    assert "atari" in doctor.names()


def test_the_command_shows_all_and_says_what_does_not_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "tried", lambda names: [Finding("jax", "ok", "2 × gpu (A100)", seconds=1.25)])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    main(["doctor", "--json", "--out", str(tmp_path / "there" / "runs")])
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is True
    assert content["machine"]["device"] == "2 × gpu (A100)"
    assert "OMP_NUM_THREADS=3" in content["machine"]["threads"]
    assert {"numpy", "scipy", "numba", "jax", "jaxlib", "flax", "optax", "gymnax", "gymnasium"} <= {
        one["what"] for one in content["installed"]
    }
    assert not (tmp_path / "there").exists()
    monkeypatch.setattr(doctor, "tried", lambda names: [Finding("atari", "fails", "no ROM", "get [one]")])
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    shown = capsys.readouterr()
    assert stop.value.code == 1
    assert "1 of what is installed do not work: atari" in shown.err
    assert "get [one]" in shown.out
