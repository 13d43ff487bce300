"""Files that somebody else made: each attack is refused with a message that names the file, and nothing else happens."""

import hashlib
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ube.errors import RunError, UsageError, plain
from ube.reading import DEEPEST, check_links, parse_json, read_bytes, read_json
from ube.report.page import read_results, write_page
from ube.report.runs import read_runs
from ube.runs.arrays import load_arrays, save_arrays
from ube.runs.checkpoints import Checkpoints
from ube.runs.directory import RunDirectory
from ube.suite import read_suite, status
from ube.suite.cells import MOST_CELLS, parsed
from ube.tabular import solve
from ube.tabular.model_file import read_model
from ube.tabular.npz import PLAIN

SECRET = "the secret of another folder"


class Harm:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def entry(shape: str, data: bytes = b"", descr: str = "<f8") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def archive(path: Path, *entries: tuple[str, bytes], kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in entries:
            file.writestr(name, content)
    return path


# -------------------------------------------------------------------- models


def test_a_pickle_in_a_model_is_never_opened(tmp_path: Path) -> None:
    harm = pickle.dumps(np.array([Harm(tmp_path / "harm")], dtype=object), protocol=4)
    assert not (tmp_path / "harm").exists()
    for content in (harm, entry("(1,)", harm, "|O")):
        for name in ("alpha.npy", "alpha", "alpha.pkl"):
            with pytest.raises(UsageError, match=r"model.npz: not a model file"):
                read_model(archive(tmp_path / "model.npz", (name, content)))
    (tmp_path / "model.npz").write_bytes(harm)
    with pytest.raises(UsageError, match=r"model.npz: not a model file"):
        read_model(tmp_path / "model.npz")
    assert not (tmp_path / "harm").exists()
    pickle.loads(harm)
    assert (tmp_path / "harm").exists()  # it would have


@pytest.mark.parametrize(
    "shape", ["(4000000000000,)", "(-8,)", "(2**40,)", "(3000000000, 3000000000)", "((((1,),),),)"]
)
def test_the_header_of_an_array_is_believed_only_if_its_bytes_are_there(tmp_path: Path, shape: str) -> None:
    with pytest.raises(UsageError, match=r"not a model file"):
        read_model(archive(tmp_path / "model.npz", ("alpha.npy", entry(shape, bytes(64)))))


def test_bombs_and_odd_archives_are_refused_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = entry(f"({int(PLAIN)},)", bytes(8 * int(PLAIN)))
    bomb = archive(tmp_path / "bomb.npz", ("alpha.npy", zeros), kind=zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < len(zeros) / 500
    monkeypatch.setattr("ube.tabular.npz.free_memory", lambda: 1e8)
    monkeypatch.setattr("ube.tabular.npz._array", None)
    with pytest.raises(UsageError, match=r"0.1 GB when unpacked, and 0.1 GB of memory are free"):
        read_model(bomb)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = archive(tmp_path / "twice.npz", ("alpha.npy", entry("(1,)", bytes(8))), ("alpha.npy", entry("(0,)")))
    with pytest.raises(UsageError, match=r"'alpha.npy' is in it twice"):
        read_model(twice)
    with pytest.raises(UsageError, match=r"packed in another way"):
        read_model(archive(tmp_path / "x.npz", ("alpha.npy", entry("(0,)")), kind=zipfile.ZIP_LZMA))
    with pytest.raises(UsageError, match=r"unknown array '../../alpha'"):
        read_model(archive(tmp_path / "out.npz", ("../../alpha.npy", entry("(1,)", bytes(8)))))
    assert not (tmp_path.parent.parent / "alpha.npy").exists()


@pytest.mark.parametrize(
    "indptr", [[0, 3, 6, 9, 12, 15, 0], [0, 9, 6, 9, 12, 15, 18], [3, 3, 6, 9, 12, 15, 18], [0, 3, 6, 9, 12, 15, 99]]
)
def test_offsets_that_would_lead_compiled_code_astray_are_refused(tmp_path: Path, indptr: list[int]) -> None:
    rewards = {"reward_mean": np.zeros((3, 2)), "reward_var": np.ones((3, 2)), "discount": 0.9, "n_actions": 2}
    sparse = {"alpha_data": np.ones(18), "alpha_indices": np.tile([0, 1, 2], 6), "alpha_indptr": np.array(indptr)}
    np.savez(tmp_path / "model.npz", **sparse, **rewards)
    with pytest.raises(UsageError, match=r"the sparse alpha is broken"):
        read_model(tmp_path / "model.npz")


def test_a_horizon_of_few_bytes_cannot_take_all_memory(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz",
        alpha=np.ones((2, 1, 2)),
        reward_mean=np.zeros((2, 1)),
        reward_var=np.ones((2, 1)),
        horizon=10**9,
    )
    with pytest.raises(UsageError, match=r"x.npz: horizon is 1000000000: .* give a discount instead"):
        read_model(tmp_path / "x.npz")


def test_a_bound_that_overflows_is_refused(tmp_path: Path) -> None:
    rewards = {"reward_mean": np.zeros((2, 1)), "reward_var": np.ones((2, 1)), "discount": 0.9, "r_max": 1e300}
    np.savez(tmp_path / "x.npz", alpha=np.ones((2, 1, 2)), **rewards)
    belief, policy = read_model(tmp_path / "x.npz")
    with pytest.raises(UsageError, match=r"infinite variance"):
        solve(belief, policy, "ube")


# -------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 200_000, "in one another"), (b'{"a":' * 200_000, "in one another"), (b"[" * 70 + b"]" * 70,
        "in one another"),
        (b"9" * 5_000, "does not fit 64 bits"), (b"18446744073709551616", "does not fit 64 bits"), (b"NaN",
        "no number here"),
        (b"-Infinity", "no number here"), (b"1e999", "not finite"), (b'{"a": 1, "a": 2}', "there twice"),
        (b"\xff\xfe{}", "decode"),
        ('{"a": 1}'.encode("utf-16"), "decode"), (b'"\\ud800"', "surrogates not allowed"), (b"", "Expecting value"),
        (b"[1] [2]", "Extra data"),
    ],
)  # fmt: skip
def test_json_that_is_not_plain_is_refused_by_name(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UsageError, match=rf"x.json cannot be read \(.*{why}.*\): do this"):
        read_json(tmp_path / "x.json", remedy="do this")


def test_plain_json_is_read_as_it_is() -> None:
    content = {"a": [1, -2.5, "é", None, True, {"b": 2**63}], "c": "\U0001f600"}
    assert parse_json(json.dumps(content)) == content
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = " + "[" * 5_000, "in one another"), ("a" + ".a" * 4_000 + " = 1", "in one another"), ("a = 1\na = 2",
        "not TOML"),
        ("x = 1" + "0" * 20_000, "a line of more than"), ("x = " + "9" * 5_000, "not TOML"), ("x = 2026-99-99",
        "not TOML"),
    ],
)  # fmt: skip
def test_toml_that_is_not_plain_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parsed("x", text, "x.toml")


@pytest.mark.parametrize(
    "change",
    ["seeds = 1_000_000_000_000", "grid = { beta = [" + "0.1," * 400 + "], n = [" + "1," * 400 + "] }\nseeds = 1_000"],
)
def test_a_few_bytes_cannot_ask_for_endless_cells(change: str) -> None:
    with pytest.raises(UsageError, match=rf"x.toml, line \d+: .*{MOST_CELLS:,}"):
        parsed("x", f'[[cells]]\nenvs = ["Catch-v0"]\nagents = ["dqn"]\nsteps = 10\n{change}', "x.toml")


def test_a_suite_cannot_choose_what_is_run(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    text = '[[cells]]\nenvs = ["{}"]\nagents = ["dqn"]\nsteps = 10\nset = {{ "env.command" = "touch {}" }}'
    for env in ("os:system", "gym/os:system"):
        file.write_text(text.format(env, tmp_path / "harm"))
        with pytest.raises(
            UsageError, match=r"x.toml asks for .*os:system, and a file may not choose .* \(--modules os"
        ):
            read_suite(str(file))
        assert read_suite(str(file), modules=("os",)).cells[0].env == env
        assert status(read_suite(str(file), modules=None), tmp_path)[0].state == "waiting"
    assert not (tmp_path / "harm").exists()


def test_what_is_printed_cannot_drive_the_terminal() -> None:
    assert plain("a\x1b[2J\r\nb\x9b\u202e\ud800é") == "a\\x1b[2J\\r\\nb\\x9b\\u202e\\ud800é"


# -------------------------------------------------------------------- folders


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    place = tmp_path / "elsewhere"
    place.mkdir()
    for name in ("config.json", "x.svg", "results.json"):
        (place / name).write_text(json.dumps({"env": SECRET, "name": SECRET}))
    return place


def begun(path: Path) -> Path:
    with RunDirectory.locked(path) as run:
        run.begin({"env": "Catch-v0", "env_args": {}, "agent": {"name": "dqn"}, "seed": 0, "steps": 10})
    return path


def test_links_out_of_a_folder_are_not_followed(tmp_path: Path, secret: Path) -> None:
    run = begun(tmp_path / "page" / "run")
    (run / "config.json").unlink()
    (run / "config.json").symlink_to(secret / "config.json")
    with pytest.raises(UsageError, match=r"config.json cannot be read \(it leads out of .*elsewhere"):
        _ = RunDirectory(run).config
    (tmp_path / "page" / "whole").symlink_to(secret)
    (secret / "results.json").unlink()
    shown = read_runs(tmp_path / "page")
    assert [one["name"] for one in shown] == ["run", "whole"]
    assert all("leads out of" in one["problem"] for one in shown)
    assert SECRET not in write_page(tmp_path / "page").read_text()


@pytest.mark.parametrize(
    "name", [".lock", "metrics.jsonl", "learning.png", "checkpoints/frames", "checkpoints/1-2/state.safetensors"]
)
def test_a_run_with_links_out_of_it_is_never_written_to(tmp_path: Path, secret: Path, name: str) -> None:
    run = begun(tmp_path / "run")
    (run / ".lock").unlink()
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(secret if name == "checkpoints/frames" else secret / "x.svg")
    with (
        pytest.raises(UsageError, match=r"leads out of .*: nothing is read or written there"),
        RunDirectory.locked(run),
    ):
        pass
    assert SECRET in (secret / "x.svg").read_text()


def test_links_within_a_run_are_fine_and_pipes_are_not_waited_for(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    (run / "latest").symlink_to("config.json")
    check_links(run, ("", "checkpoints"))
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(UsageError, match=r"metrics.jsonl is no plain file"):
        check_links(run)
    with pytest.raises(UsageError, match=r"metrics.jsonl cannot be read \(it is not a plain file\)"):
        RunDirectory(run).columns("metrics")
    with pytest.raises(UsageError, match=r"zero cannot be read \(it is not a plain file\)"):
        read_bytes(Path("/dev/zero"), remedy="x")
    with pytest.raises(UsageError, match=r"config.json cannot be read \(it is larger than 3 bytes\): x"):
        read_bytes(run / "config.json", remedy="x", most=3)


@pytest.mark.parametrize("figure", ["../../elsewhere/x", "ABSOLUTE", "link"])
def test_the_page_embeds_no_picture_of_another_folder(tmp_path: Path, secret: Path, figure: str) -> None:
    folder = tmp_path / "page" / "one"
    folder.mkdir(parents=True)
    (folder / "link.svg").symlink_to(secret / "x.svg")
    figure = str(secret / "x") if figure == "ABSOLUTE" else figure
    (folder / "results.json").write_text(json.dumps({"figures": [figure]}))
    with pytest.raises(UsageError, match=r"x.svg|link.svg cannot be read \(it leads out of"):
        read_results(tmp_path / "page")
    (folder / "results.json").write_text(json.dumps({"figures": ["same"] * 2}))
    with pytest.raises(UsageError, match=r"figures are a list of a few names, each once"):
        read_results(tmp_path / "page")


# -------------------------------------------------------------------- arrays


def test_only_the_arrays_that_are_asked_for_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, like = tmp_path / "state.safetensors", {"a": np.zeros(3, np.float32)}
    path.write_bytes(save_arrays({"a": np.arange(3, dtype=np.float32), "more": np.zeros(1_000)}))
    assert load_arrays(path, like)["a"].tolist() == [0.0, 1.0, 2.0]
    for found in (np.zeros(4, np.float32), np.zeros(3, np.int64)):
        path.write_bytes(save_arrays({"a": found}))
        with pytest.raises(UsageError, match=rf"should be float32 \(3,\), found {found.dtype} \({len(found)},\)"):
            load_arrays(path, like)
    for size in (2**63 - 1, 10**9, 2**40):
        path.write_bytes(struct.pack("<Q", size) + b"{}")
        with pytest.raises(UsageError, match=r"state.safetensors cannot be read \(.*: train the run again"):
            load_arrays(path, like)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../../elsewhere/x.svg": "0"}}, {"files": {}}, {"segments": {"../../x-0-0.bin": "0"}},
        {"segments": {"a": "0"}},
        {"segments": {"0-0-0.bin": 3}}, {"segments": []}, {"facts": None}, {"segments": {"0-999999999-1.bin": "0"}},
    ],
)  # fmt: skip
def test_a_manifest_names_files_of_its_own_checkpoint_alone(tmp_path: Path, change: dict[str, Any]) -> None:
    store = Checkpoints(tmp_path)
    store.save(1, {"a": np.zeros(2)}, None, {})
    (folder,) = (tmp_path / "checkpoints").glob("*-*")
    assert store.restore({"a": np.zeros(2)}, None, str) is not None
    content = json.dumps(json.loads((folder / "manifest.json").read_text()) | change).encode()
    (folder / "manifest.json").write_bytes(content)
    folder.rename(folder.with_name(f"{1:012d}-{hashlib.sha256(content).hexdigest()[:16]}"))
    with pytest.raises(RunError, match=r"is damaged \((manifest.json|0-999999999-1.bin)"):
        store.restore({"a": np.zeros(2)}, None, str)


def test_rows_are_not_made_longer_by_what_a_checkpoint_says(tmp_path: Path) -> None:
    run = RunDirectory(begun(tmp_path / "run"))
    run.append("metrics", {"step": [1, 2]})
    before = (run.path / "metrics.jsonl").read_bytes()
    for sizes in ({"metrics": 10**15}, {"metrics": -1}, {"metrics": "9"}, {"../x": 1}, None):
        with pytest.raises(UsageError, match=r"fewer rows .* start a new one"):
            run.cut_back(sizes)  # type: ignore[arg-type]
    assert (run.path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "line",
    ['{"step": [1]}', '{"step": "a"}', "[1]", '{"step": 1, "step": 2}', '{"loss": 1}', '{"step": 1' + "0" * 30 + "}"],
)
def test_rows_that_are_no_rows_are_named(tmp_path: Path, line: str) -> None:
    run = RunDirectory(begun(tmp_path / "run"))
    (run.path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(
        UsageError, match=r"metrics.jsonl cannot be read \(.*\): the rows of a run are what `ube train` wrote"
    ):
        run.columns("metrics")
