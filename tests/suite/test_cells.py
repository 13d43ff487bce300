"""Suites as data: what is shipped, what a file may say, and what is said of a bad one."""

import dataclasses
from pathlib import Path

import pytest

from ube import UsageError
from ube.deep.config import PRESETS
from ube.deep.settings import Knobs
from ube.suite import read_suite, shipped
from ube.suite.cells import KNOBS, _config_digest, parsed
from ube.suite.work import room

SMALL = """
about = "small"

[[cells]]
envs = ["DeepSea-v0"]
agents = ["dqn", "ube-1step"]
seeds = [3, 5]
steps = 200
set = { hidden = [4], "env.size" = 3 }
grid = { beta = [0.1, 0.2] }

[[cells]]
envs = ["atari/pong"]
agents = ["dqn"]
frames = 4_000
evaluate_every = 2_000
evaluation_frames = 400
protocol = "dopamine"
"""


def test_the_papers_suite_is_all_of_it() -> None:
    suite = read_suite("atari57")
    assert len({cell.id for cell in suite.cells}) == len(suite.cells) == 684 == 57 * 4 * 3
    assert {cell.agent for cell in suite.cells} == {"dqn", "bonus", "ube-1step", "ube-nstep"}
    assert {cell.seed for cell in suite.cells} == {0, 1, 2}
    cell = suite.cells[0]
    assert (cell.env, cell.steps, cell.evaluate_every, cell.evaluation_steps) == (
        "atari/alien",
        50_000_000,
        250_000,
        125_000,
    )
    assert (cell.replay_size, cell.overrides, cell.evaluation_policy) == (1_000_000, {}, "both")
    montezuma = read_suite("montezuma").cells
    assert {(cell.agent, cell.overrides.get("beta")) for cell in montezuma} == {
        ("dqn", None), ("bonus", None), ("ube-1step", 0.016), ("ube-nstep", 0.016),
    }  # fmt: skip
    assert {cell.steps for cell in montezuma} == {125_000_000}


def test_every_shipped_suite_can_be_read() -> None:
    assert set(shipped()) == {"atari57", "montezuma", "minatar5", "deepsea", "atari-small", "demo"}
    for name, about in shipped().items():
        suite = read_suite(name)
        assert suite.cells
        assert suite.about == about


def test_a_block_is_a_product() -> None:
    suite = parsed("small", SMALL, "small.toml")
    sea, pong = suite.cells[:-1], suite.cells[-1]
    assert [(cell.agent, cell.overrides["beta"], cell.seed) for cell in sea] == [
        (agent, beta, seed) for agent in ("dqn", "ube-1step") for beta in (0.1, 0.2) for seed in (3, 5)
    ]
    assert sea[0].env_args == {"size": 3}
    assert sea[0].overrides == {"hidden": [4], "beta": 0.1}
    assert (pong.steps, pong.seed, pong.evaluate_every, pong.evaluation_steps) == (1_000, 0, 500, 100)
    assert pong.protocol == "dopamine"
    assert sea[0].id.startswith("DeepSea-v0-dqn-seed3-")
    assert len({cell.id for cell in suite.cells}) == 9


def test_times_of_evaluation_are_frames_of_atari_and_steps_of_anything_else() -> None:
    both = SMALL.replace('envs = ["atari/pong"]', 'envs = ["atari/pong", "gym/CartPole-v1"]\nsteps = 600')
    pong, pole = parsed("both", both.replace('protocol = "dopamine"', ""), "both.toml").cells[-2:]
    assert (pong.steps, pong.evaluate_every, pong.evaluation_steps) == (1_000, 500, 100)
    assert (pole.steps, pole.evaluate_every, pole.evaluation_steps) == (600, 2_000, 400)


def test_cells_that_share_a_program_are_of_one_kind() -> None:
    assert set(KNOBS) == set(Knobs._fields) - {"warmup", "bonus_scale"}  # which decide when and what is computed
    sea = parsed("small", SMALL, "small.toml").cells[:4]
    assert {cell.overrides["beta"] for cell in sea} == {0.1, 0.2}
    assert len({cell.kind for cell in sea}) == 1
    wider = dataclasses.replace(sea[0], overrides={"hidden": [5], "beta": 0.1})
    assert wider.kind != sea[0].kind


def test_the_id_changes_with_anything_that_decides_the_result() -> None:
    ids = {
        parsed("a", SMALL.replace(*change), "a").cells[0].id for change in [("", ""), ("200", "201"), ("[4]", "[5]")]
    }
    assert len(ids) == 3


def test_what_a_cell_needs_is_no_part_of_what_is_asked() -> None:
    (plain, *_), (large, *_) = (
        parsed("a", SMALL.replace("seeds = [3, 5]", f"seeds = [3, 5]\n{needs}"), "a").cells
        for needs in ("", "cpus = 2\ngpus = 0.5\nmemory_gb = 8")
    )
    assert large.id == plain.id
    assert (large.cpus, large.gpus, room(large).memory) == (2, 0.5, 8e9)
    assert room(plain).memory < room(large).memory
    assert room(plain).disk == room(large).disk


def test_a_suite_has_an_end() -> None:
    block = "\n[[cells]]\n" + 'envs = ["DeepSea-v0"]\nagents = ["dqn"]\nsteps = 10\n'
    many = "".join(f"{block}seeds = 40_000\nset = {{ beta = 0.{i} }}\n" for i in (1, 2, 3))
    with pytest.raises(UsageError, match=r"x.toml, line 20: 40,000 more cells: a suite has at most 100,000; make two"):
        parsed("x", many, "x.toml")


def test_a_changed_preset_changes_the_digest_of_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = parsed("a", SMALL, "a").cells[0]
    before = cell.config_digest
    assert before != dataclasses.replace(cell, overrides={"beta": 0.3}).config_digest
    monkeypatch.setitem(PRESETS, "dqn", dataclasses.replace(PRESETS["dqn"], discount=0.5))
    _config_digest.cache_clear()
    assert cell.config_digest != before
    _config_digest.cache_clear()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('agents = ["dqn", "ube-1step"]', 'agents = ["dqm"]'), r"x.toml, line 6: agent .dqm. does not exist"),
        (("seeds = [3, 5]", "seeds = -1"), r"line 7: seeds = -1: give how many"),
        (("steps = 200", "stepps = 200"), r"line 8: 'stepps' means nothing in a block: did you mean steps\?"),
        (("steps = 200", "steps = 2.5"), r"line 8: steps = 2.5: give a whole number"),
        (("steps = 200", "frames = 200"), r"line 8: DeepSea-v0 is trained for steps, not frames"),
        (("steps = 200\n", ""), r"line 5: for how long\? give steps = N"),
        (("hidden = [4]", "hiden = [4]"), r"line 9: 'hiden' is not a field of an agent: did you mean hidden"),
        (("beta = [0.1, 0.2]", "beta = 0.1"), r"line 10: beta = 0.1: a grid has lists"),
        (("atari/pong", "atari/pongg"), r"line 13: no Atari game 'pongg': did you mean pong"),
        (('"dopamine"', '"dopamin"'), r"line 18: protocol = 'dopamin': choose one of auto"),
        (("evaluate_every = 2_000", "evaluate_every = 0"), r"line 16: evaluate_every = 0: .* at least 4"),
        (("seeds = [3, 5]", "seeds = [3, 3]"), r"line 7: seeds = \[3, 3\]: each may be there once"),
        (('envs = ["DeepSea-v0"]', 'envs = ["DeepSea-v0", "DeepSea-v0"]'), r"line 5: DeepSea-v0, dqn, seed 3 is there"),
        (("beta = [0.1, 0.2]", "beta = [0.1, -2.0]"), r"line 10: beta=-2.0: "),
        (("beta = [0.1, 0.2]", 'beta = [0.1, "x"]'), r"line 10: beta='x': expected float"),
        (("beta = [0.1, 0.2]", '"env.day" = [2020-01-01]'), r"line 10: env.day = .*: give a number, text"),
        (('"env.size" = 3', '"env.day" = 2020-01-01'), r"line 9: env.day = 2020-01-01: give a number, text"),
        (('"env.size" = 3', '"env.at" = [[07:32:00]]'), r"line 9: env.at = .*: give a number, text"),
        (("hidden = [4]", "hidden = 1979-05-27T07:32:00Z"), r"line 9: hidden = 1979-05-27 .*: give a number, text"),
        (('about = "small"', "about = 3"), r"line 2: about = 3: give text in quotes"),
        (('envs = ["DeepSea-v0"]', 'envs = "DeepSea-v0"'), r"line 5: envs = 'DeepSea-v0': give a list of names"),
        (('about = "small"', 'abuot = "small"'), r"line 2: 'abuot' means nothing here: did you mean about"),
        (('about = "small"', 'about = "small'), r"x.toml is not TOML: .* \(at line 2, column"),
        (("seeds = [3, 5]", "seeds = 200_000_000"), r"line 7: seeds = 200000000: give how many, at most 100,000"),
        (("seeds = [3, 5]", f"seeds = {10**30}"), r"line 7: seeds = 10+: give how many"),
        (("seeds = [3, 5]", "seeds = 50_000"), r"line 10: 200,000 more cells: a suite has at most 100,000"),
        (("steps = 200", f"steps = {10**30}"), r"line 8: steps = 10+: give a whole number, at least 1, at most 1e"),
        (("DeepSea-v0", "Deep\\u0000Sea"), r"line 5: envs: 'Deep\\x00Sea' is no name of one line"),
        (("DeepSea-v0", "x" * 101), r"line 5: envs: 'x+' is no name of one line with at most 100 letters"),
        (("seeds = [3, 5]", "memory_gb = 0"), r"line 7: memory_gb = 0: give a number from 0.1 on"),
        (("seeds = [3, 5]", "gpus = nan"), r"line 7: gpus = nan: give a number from 0 on, such as 0.25"),
        (('protocol = "dopamine"', "[cells.set]\nbeta = 0.1\nhiden = [4]"), r"line 20: 'hiden' is not a field"),
        (('protocol = "dopamine"', "[cells.grid]\nn = [1]\nbeta = 0.1"), r"line 20: beta = 0.1: a grid has lists"),
        (('protocol = "dopamine"', '[cells.grid]\n"beta" = [0.1, -2.0]'), r"line 19: beta=-2.0: "),
        (("[[cells]]", "[cells]"), r"x.toml is not TOML|needs at least one block"),
    ],
)  # fmt: skip
def test_a_bad_file_is_told_where_and_what(change: tuple[str, str], message: str) -> None:
    assert change[0] in SMALL
    with pytest.raises(UsageError, match=message):
        parsed("x", SMALL.replace(*change), "x.toml")


def test_a_file_that_is_not_there_or_no_suite(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.toml cannot be read .No such file or directory.: give the path"):
        read_suite(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match=r"no suite 'atari': did you mean"):
        read_suite("atari")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(UsageError, match=r"empty.toml: a suite needs at least one block"):
        read_suite(str(tmp_path / "empty.toml"))
    (tmp_path / "notepad.toml").write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert read_suite(str(tmp_path / "notepad.toml")).cells == parsed("notepad", SMALL, "").cells
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"bytes.toml cannot be read .*decode"):
        read_suite(str(tmp_path / "bytes.toml"))
