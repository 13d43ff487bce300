"""`ube completion`, asked in a real shell; `ube` alone, and a command that is none."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ube.cli import COMMANDS, main
from ube.deep.config import PRESETS

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
_ube
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ube.completion import SHELLS, script

    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        (folder / f"ube.{shell}").write_text(script(shell, COMMANDS) + "\n")
    return folder


def offered(scripts: Path, *words: str) -> list[str]:
    command = ["bash", "-c", ASK, "ask", str(scripts / "ube.bash"), "ube", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_accepts_the_script(scripts: Path) -> None:
    subprocess.run(["bash", "-n", str(scripts / "ube.bash")], check=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["comp"], ["compare", "completion"]),
        (["train", "--agent", "ube-"], ["ube-1step", "ube-nstep", "ube-deep"]),
        (["train", "--env", "atari/mont"], ["atari/montezuma_revenge"]),
        (["train", "--set", "n", "=", "5", "beta_"], ["beta_unit="]),
        (["train", "--out", ""], []),  # files
        (["compare", "--agents", "dqn,ube-d"], ["dqn,ube-deep"]),
        (["compare", "--agents", "dqn", "boo"], ["boot"]),
        (["compare", "--agents", "dqn", "--st"], ["--steps"]),
        (["reproduce", "riv"], ["riverswim"]),
        (["suite", "run", "mont"], ["montezuma"]),
        (["evaluate", "--policy", ""], ["greedy", "own"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_bash_offers_what_can_be_written(scripts: Path, words: list[str], expected: list[str]) -> None:
    assert offered(scripts, *words) == expected


def test_every_command_and_agent_is_offered(scripts: Path) -> None:
    assert set(COMMANDS) <= set(offered(scripts, ""))
    assert offered(scripts, "compare", "--agents", "") == list(PRESETS)


@pytest.mark.parametrize(("shell", "option"), [("zsh", "-n"), ("tcsh", "-fn")])
def test_other_shells_accept_theirs(scripts: Path, shell: str, option: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, option, str(scripts / f"ube.{shell}")], check=True)


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str], scripts: Path) -> None:
    main(["completion", "tcsh"])
    assert capsys.readouterr().out == (scripts / "ube.tcsh").read_text()
    with pytest.raises(SystemExit) as stop:
        main(["completion", "zhs"])
    assert stop.value.code == 2
    assert "ube completion zhs: did you mean zsh" in capsys.readouterr().err


def test_no_command_is_help_and_a_wrong_one_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    shown = capsys.readouterr()
    assert stop.value.code == 2
    assert all(name in shown.out for name in COMMANDS)
    with pytest.raises(SystemExit) as stop:
        main(["trian", "--env", "DeepSea-v0"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "ube: no command 'trian': did you mean train or variance?\n"
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
