"""The commands as a user meets them: good input, bad input, exit codes, nothing half written."""

import contextlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ube import __version__
from ube.cli import main
from ube.tabular import Belief, ScaledBeta, solve


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a failing command prints."""
    with pytest.raises(SystemExit) as stop:
        main([str(w) for w in words])
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "alpha": rng.gamma(1.0, 1.0, (3, 2, 2, 2)) + 0.1,
        "reward_mean": rng.uniform(-0.5, 0.5, (3, 2, 2)),
        "reward_var": rng.uniform(0.0, 0.1, (3, 2, 2)),
        "policy": rng.dirichlet([1.0, 1.0], (3, 2)),
    }


@pytest.fixture
def model(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(tmp_path / "model.npz", **arrays)  # type: ignore[arg-type]
    return tmp_path / "model.npz"


@pytest.mark.parametrize("method", ["ube", "ube-horizon", "pombu", "exact", "lower", "delta"])
def test_variance_equals_the_python_call(
    model: Path, arrays: dict[str, np.ndarray], method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["variance", str(model), "--method", method, "--json"])
    shown = json.loads(capsys.readouterr().out)
    belief = Belief.layered(arrays["alpha"], arrays["reward_mean"], arrays["reward_var"])
    solution = solve(belief, arrays["policy"], method)
    assert np.allclose(shown["variance"], solution.variance, rtol=1e-15)
    assert np.allclose(shown["q_mean"], solution.q_mean, rtol=1e-15)
    assert (shown["guarantee"], shown["why"]) == (solution.guarantee, solution.why)


def test_variance_prints_a_table_and_writes_json(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["variance", str(model), "--samples", "2000", "--rows", "3", "--out", str(tmp_path / "deep" / "v.json")])
    text = capsys.readouterr().out
    assert "[0, 0, 0]" in text
    assert "[0, 1, 1]" not in text
    assert "and 9 more" in text
    assert "guarantee: exact, because" in text
    written = json.loads((tmp_path / "deep" / "v.json").read_text())
    z = (np.array(written["variance"]) - written["monte_carlo_variance"]) / np.array(written["monte_carlo_se"])
    assert np.abs(z).max() < 5


def test_variance_reads_every_kind_of_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    alpha = rng.gamma(1.0, 1.0, (3, 2, 3)) + 0.1
    mean, var = rng.uniform(0, 0.5, (3, 2)), np.full((3, 2), 0.1)
    normal = {"reward_mean": mean, "reward_var": var}
    chain = np.zeros((3, 1, 3))
    chain[0, 0, 1], chain[1, 0, 2] = 1.0, 2.0
    dense = alpha.reshape(6, 3)
    ragged_mean = rng.uniform(0, 0.5, (3, 2))
    cases = {
        "stationary": ({"alpha": alpha, **normal, "discount": 0.9}, Belief.stationary(alpha, mean, var, discount=0.9)),
        "horizon": (
            {"alpha": alpha, **normal, "horizon": 4},
            Belief.stationary(alpha, mean, var, discount=1.0, horizon=4),
        ),
        "acyclic": (
            {"alpha": chain, "reward_mean": np.zeros((3, 1)), "reward_var": np.ones((3, 1)), "terminal": np.array([2])},
            Belief.acyclic(chain, np.zeros((3, 1)), np.ones((3, 1)), terminal=[2]),
        ),
        "beta": (
            {"alpha": alpha, "beta_a": mean + 1, "beta_b": var + 1, "discount": 0.5},
            Belief.stationary(alpha, rewards=ScaledBeta(mean + 1, var + 1), discount=0.5),
        ),
        "sparse": (
            {
                "alpha_data": dense.reshape(-1), "alpha_indices": np.tile([0, 1, 2], 6),
                "alpha_indptr": np.arange(7) * 3, "n_actions": 2, **normal, "discount": 0.9,
            },
            Belief.stationary(alpha, mean, var, discount=0.9),
        ),
        "half the digits": (  # SciPy has no sparse matrices of such numbers
            {
                "alpha_data": dense.reshape(-1).astype(np.float16), "alpha_indices": np.tile([0, 1, 2], 6),
                "alpha_indptr": np.arange(7) * 3, "n_actions": 2, **normal, "discount": 0.9,
            },
            Belief.stationary(alpha.astype(np.float16).astype(float), mean, var, discount=0.9),
        ),
        "ragged": (
            {
                "alpha_0": alpha[:1, :, :2], "alpha_1": alpha[:2, :, :1], "reward_mean": ragged_mean, "reward_var": var,
                "policy": np.full((3, 2), 0.5),
            },
            Belief.layered(
                [alpha[:1, :, :2], alpha[:2, :, :1]], [ragged_mean[:1], ragged_mean[1:]], [var[:1], var[1:]]
            ),
        ),
    }  # fmt: skip
    for name, (content, belief) in cases.items():
        np.savez(tmp_path / f"{name}.npz", **content)  # type: ignore[arg-type]
        main(["variance", str(tmp_path / f"{name}.npz"), "--method", "pombu", "--json"])
        shown = json.loads(capsys.readouterr().out)
        expected = solve(belief, "uniform", "pombu").variance
        flat = np.concatenate([np.ravel(v) for v in expected]) if isinstance(expected, list) else np.ravel(expected)
        seen = np.concatenate([np.ravel(v) for v in shown["variance"]])
        assert np.allclose(seen, flat, rtol=1e-12), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": None}, "no array 'alpha'"),
        ({"alpha": np.ones((3, 2))}, r"alpha has shape \(3, 2\)"),
        ({"alpha": -np.ones((3, 2, 2, 2))}, r"alpha\[0, 0, 0, 0\] is -1: Dirichlet parameters are finite and 0 or more"),
        ({"alpha": np.full((3, 2, 2, 2), np.nan)}, r"alpha\[0, 0, 0, 0\] is nan"),
        ({"alpha": np.zeros((3, 2, 2, 2))}, r"alpha\[0, 0, 0\] sums to 0: every \(s, a\) needs at least one reachable"),
        ({"policy": np.full((3, 2, 2), 0.4)}, r"policy\[0, 0\] sums to 0.8"),
        ({"policy": np.ones((2, 2))}, r"policy has shape \(2, 2\)"),
        ({"reward_mean": np.full((3, 2, 2), 5.0)}, r"r_max=1 is below \|mean reward\[0, 0, 0\]\| = 5: pass r_max of at"),
        ({"reward_var": None}, "give reward_mean and reward_var"),
        ({"reward_var": np.full((3, 2, 2), -1.0)}, r"reward_var\[0, 0, 0\] is -1"),
        ({"alpha": np.ones((2, 2, 2)), "reward_mean": np.zeros((2, 2)), "reward_var": np.ones((2, 2)), "policy": None},
         "discount=1 without a horizon"),
        ({"alhpa": np.ones(3)}, "unknown array 'alhpa'"),
        ({"alpha_0": np.ones((2, 2, 2))}, "alpha and alpha_0 both give alpha: keep one"),
        ({"alpha": None, "alpha_0": np.ones((2, 2, 2)), "alpha_5": np.ones((2, 2, 2))}, "no alpha_1: 2 layers"),
        ({"alpha": None, "alpha_0": np.ones(())}, "must each have the shape"),
        ({"beta_a": np.ones((3, 2, 2))}, "reward_mean and beta_a both give the reward belief"),
        ({"horizon": 3}, "horizon goes with a stationary alpha"),
        ({"horizon": 2.5}, "horizon is 2.5: it must be a whole number"),
        ({"horizon": np.nan}, "horizon is nan: it must be a whole number"),
        ({"horizon": 1e12}, "horizon is 1e.12: it must be a whole number"),
        ({"alpha": None, "alpha_data": np.ones(2), "alpha_indices": np.zeros(2), "alpha_indptr": np.ones(()), "n_actions": 1},
         "does not divide the 0 rows"),
        ({"r_max": np.ones(3)}, r"r_max has shape \(3,\)"),
        ({"beta_a": np.ones((3, 2, 2)), "reward_mean": None, "reward_var": None}, "incomplete reward belief"),
        ({"reward_mean": np.full((3, 2, 2), "a")}, "array 'reward_mean' holds <U1, not numbers"),
    ],
)  # fmt: skip
def test_variance_says_what_is_wrong_with_a_model(
    tmp_path: Path, arrays: dict[str, np.ndarray], change: dict[str, object], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    content = {k: v for k, v in (arrays | change).items() if v is not None}  # type: ignore[operator]
    np.savez(tmp_path / "m.npz", **content)
    out = tmp_path / "out.json"
    error = failure(capsys, "variance", tmp_path / "m.npz", "--out", out)
    assert re.search(message, error), error
    assert not out.exists()


def test_variance_refuses_files_that_are_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file" in failure(capsys, "variance", tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    assert "not a model file" in failure(capsys, "variance", tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.ones(3))
    assert "a single array" in failure(capsys, "variance", tmp_path / "one.npy")
    np.savez(tmp_path / "pickled.npz", alpha=np.array([{"a": 1}], dtype=object))
    assert "not a model file" in failure(capsys, "variance", tmp_path / "pickled.npz")
    whole = (tmp_path / "pickled.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "not a model file" in failure(capsys, "variance", tmp_path / "cut.npz")


def test_damaged_and_hostile_archives_are_one_line_each(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = bytearray(model.read_bytes())
    for place in range(40, len(whole), 97):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "damaged.npz").write_bytes(damaged)
        code = 0
        with contextlib.suppress(SystemExit):  # a flipped bit in a number may still be a valid model
            code = 2
            main(["variance", str(tmp_path / "damaged.npz"), "--json"])
            code = 0
        assert capsys.readouterr().err.count("\n") == code // 2
    with zipfile.ZipFile(tmp_path / "plain.npz", "w") as archive:
        archive.writestr("alpha", "hello")
    assert "not a model file" in failure(capsys, "variance", tmp_path / "plain.npz")
    header = (
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (4000000000000,), }".ljust(117)
        + b"\n"
    )
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("alpha.npy", header)
    assert "not a model file" in failure(capsys, "variance", tmp_path / "huge.npz")


def test_places_that_cannot_be_written_are_one_line_each(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file" / "x.json", Path("/proc/nope/x.json")):
        error = failure(capsys, "variance", model, "--out", out)
        assert "choose another place" in error
    taken = tmp_path / "taken" / "bound" / "results.json"
    taken.mkdir(parents=True)
    assert "is a folder" in failure(capsys, "reproduce", "bound", "--out", tmp_path / "taken")
    assert "--seed -1: it must be 0 or more" in failure(capsys, "variance", model, "--samples", "9", "--seed", "-1")
    assert "--rows -1" in failure(capsys, "variance", model, "--rows", "-1")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "3", '{"name": 1}', "[" * 100_000, '{"figures": [], "summary": [{}]}', '{"figures": [], "summary": 3}'],
)
def test_report_refuses_junk(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "results.json").write_text(content)
    assert "not a results file of ube" in failure(capsys, "report", tmp_path)
    assert not (tmp_path / "index.html").exists()


def test_unknown_names_list_the_choices(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown method 'exactt': choose one of ube" in failure(capsys, "variance", model, "--method", "exactt")
    assert "unknown policy 'best'" in failure(capsys, "variance", model, "--policy", "best")
    assert "unknown experiment 'chian': choose one of chain" in failure(capsys, "reproduce", "chian", "--out", tmp_path)
    assert "unknown scale 'huge'" in failure(capsys, "reproduce", "chain", "--scale", "huge", "--out", tmp_path)
    assert "seeds=1: at least 2" in failure(capsys, "reproduce", "chain", "--seeds", "1", "--out", tmp_path)
    assert "which experiment?" in failure(capsys, "reproduce")
    assert "which model?" in failure(capsys, "variance")
    assert "no results.json" in failure(capsys, "report", tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot write to" in failure(capsys, "reproduce", "tree", "--out", blocked)


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "--list"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [
        "chain", "bound", "tree", "deepsea-tabular", "riverswim", "deepsea", "sparse", "minatar", "development",
        "confirmation", "ablation", "atari-dopamine", "atari", "untried", "visits", "atari57", "montezuma",
    ]  # fmt: skip
    main(["agents"])
    assert "ube-thompson" in capsys.readouterr().out
    main(["variance", "--arrays"])
    assert "alpha_indptr" in capsys.readouterr().out
    main(["--version"])
    assert capsys.readouterr().out == f"ube {__version__}\n"


def test_the_installed_command_explains_itself_and_fails_without_a_traceback(tmp_path: Path) -> None:
    ube = Path(sys.executable).with_name("ube")
    shown = subprocess.run([ube, "variance", "--help"], capture_output=True, text=True, check=True).stdout
    assert "--method" in shown
    failed = subprocess.run([ube, "variance", tmp_path / "x.npz"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert failed.stderr == f"ube: {tmp_path / 'x.npz'}: no such file\n"
