"""The documentation builds, its links lead somewhere, its code compiles, and its commands exist."""

import contextlib
import functools
import importlib.util
import io
import itertools
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from ube.cli import main
from ube.deep.config import PRESETS, parse_overrides
from ube.figures import EXPERIMENTS
from ube.suite.command import VERBS
from ube.tabular import Belief, solve

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
needs_mkdocs = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("mkdocs", "mkdocstrings", "griffe")),
    reason="mkdocs or mkdocstrings[python] is not installed: pip install '.[dev]'",
)


class Page(HTMLParser):
    """What a page refers to, and the places in it that can be referred to."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {str(given[name]) for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        self.loaded += [str(given[name]) for name in ("src", "href") if given.get(name) and tag != "a"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return {path: Page(path) for path in folder.rglob("*.html")}


@needs_mkdocs
def test_every_page_is_built(site: dict[Path, Page]) -> None:
    names = {path.stem for path in site}
    assert {page.stem for page in PAGES[1:]} <= names


@needs_mkdocs
def test_every_link_of_the_site_leads_somewhere(site: dict[Path, Page]) -> None:
    broken = []
    for path, page in site.items():
        for link in (*page.links, *page.loaded):
            place = urlsplit(link)
            if place.scheme or place.netloc or path.stem == "404":  # that one is made for the root of a server
                continue
            target = (path.parent / unquote(place.path)).resolve() if place.path else path
            if not target.is_file():
                broken.append(f"{path.name}: {link}")
            elif place.fragment and target.suffix == ".html" and place.fragment not in site[target].anchors:
                broken.append(f"{path.name}: {link}, no such place")
    assert not broken


@needs_mkdocs
def test_the_site_needs_no_network(site: dict[Path, Page]) -> None:
    loaded = {place for page in site.values() for place in page.loaded if urlsplit(place).netloc}
    assert not loaded


@needs_mkdocs
def test_the_reference_has_what_it_names(site: dict[Path, Page]) -> None:
    (tabular,) = [page for path, page in site.items() if path.match("reference/tabular.html")]
    assert {"ube.tabular.Belief.layered", "ube.tabular.solve", "ube.tabular.Solution.guarantee"} <= tabular.anchors
    (config,) = [page for path, page in site.items() if path.match("reference/config.html")]
    fields = {f"ube.deep.config.AgentConfig.{name}" for name in PRESETS["dqn"].__dataclass_fields__}
    assert fields <= config.anchors


@needs_mkdocs
def test_lists_are_lists_and_parameters_too(site: dict[Path, Page]) -> None:
    text = {path.stem: path.read_text() for path in site}
    assert re.search(r"<li>\s*(<p>)?The backup at layer h", text["theory"])
    assert re.search(r"<li>\s*(<p>)?<code>policy</code>: probabilities", text["tabular"])


@needs_mkdocs
def test_every_class_and_function_of_the_reference_has_a_docstring() -> None:
    import griffe

    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"])
    package = loader.load("ube")
    loader.resolve_aliases()

    def without(thing: Any, name: str) -> Iterator[str]:
        if (thing.is_class or thing.is_function) and thing.docstring is None:
            yield name
        if thing.is_class or thing.is_module:
            inherited = {known for base in (thing.mro() if thing.is_class else ()) for known in base.members}
            for member in thing.members.values():
                if not (member.name.startswith("_") or member.is_alias or member.name in inherited):
                    yield from without(member, f"{name}.{member.name}")

    named = [name for page in PAGES for name in re.findall(r"^::: ube\.(\S+)", page.read_text(), re.M)]
    assert "tabular.Belief" in named
    assert [bare for name in named for bare in without(package[name], name)] == []


def python_blocks() -> list[Any]:
    blocks = [(page, code) for page in PAGES for kind, code in FENCE.findall(page.read_text()) if kind == "python"]
    return [pytest.param(page, code, id=f"{page.stem}-{i}") for i, (page, code) in enumerate(blocks)]


@pytest.mark.parametrize(("page", "code"), python_blocks())
def test_python_of_the_docs_compiles(page: Path, code: str) -> None:
    whole = re.sub(r'^--8<-- "(.+)"$', lambda found: (ROOT / found[1]).read_text(), code, flags=re.M)
    compile("def block():\n" + textwrap.indent(whole, "    "), str(page), "exec")  # some are from within a function


@pytest.mark.parametrize(("page", "word"), [("index.md", "solve("), ("howto/network.md", "InverseCounts")])
def test_python_that_needs_no_run_runs(page: str, word: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    (code,) = [code for kind, code in FENCE.findall(text) if kind == "python" and word in code]
    scope: dict[str, Any] = {}
    exec(compile(code, page, "exec"), scope)
    if "solution" in scope:
        assert scope["solution"].guarantee == "exact"
    else:
        assert scope["target"] == pytest.approx(scope["nu"][2] + 0.99**2 * 0.5)


def commands() -> list[str]:
    """`ube …` in code, inline or as a line of a block that is not Python; without comments."""
    found: dict[str, None] = {}
    for page in PAGES:
        text = page.read_text()
        for kind, code in FENCE.findall(text):
            if kind in ("", "sh"):
                parts = (part.strip() for line in code.splitlines() for part in line.split("#")[0].split(";"))
                found |= {part: None for part in parts if part.startswith("ube ")}
        outside = FENCE.sub("", text)
        found |= dict.fromkeys(" ".join(inline.split()) for inline in re.findall(r"`(ube [^`]+)`", outside))
    return sorted(found)


@functools.cache
def help_of(*words: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0, words
    return text.getvalue()


def test_commands_are_found() -> None:
    assert {"ube envs", "ube suite plan atari57", "ube reproduce --list", "ube report results"} <= set(commands())


@pytest.mark.parametrize("command", commands())
def test_command_of_the_docs_exists(command: str) -> None:
    _, name, *words = command.split()
    known = re.search(r"\{(.+?)\}", help_of())
    assert known is not None
    assert name in known[1].split(","), command
    options = re.findall(r"^. (?:-\w, )?(--[a-z-]+)", help_of(name), re.M)
    asked = [word for word in words if word.startswith("--")]
    assert [option for option in asked if option not in options] == []
    given = dict(itertools.pairwise(words))
    first = words[0] if words and not words[0].startswith("--") else "NAME"
    if name == "suite":
        assert first in (*VERBS, "NAME")
    if name == "reproduce":
        assert first in (*EXPERIMENTS, "quick", "NAME")
    for agent in (given.get("--agent") or given.get("--agents") or "dqn").split(","):
        assert agent in (*PRESETS, "PRESET")
    if "--set" in words:
        after = words[words.index("--set") + 1 :]
        parse_overrides([word for word in after if "=" in word])


def test_the_exact_recursion_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    source = ROOT / "examples" / "exact_recursion.py"
    exec(compile(source.read_text(), str(source), "exec"), {"__name__": "__main__"})
    assert "all 24 variances agree" in capsys.readouterr().out


def test_the_derivation_by_hand() -> None:
    text = (ROOT / "docs" / "derivation.md").read_text()
    assert "= 3/4." in text
    assert "= 13/12." in text
    belief = Belief.layered(
        [np.ones((1, 1, 2)), np.ones((2, 1, 1))], [np.zeros((1, 1)), [[0.0], [1.0]]], [np.zeros((1, 1)), [[1.0], [1.0]]]
    )
    found = {method: solve(belief, "uniform", method).variance[0][0, 0] for method in ("exact", "pombu", "lower")}
    assert found == pytest.approx({"exact": 3 / 4, "pombu": 13 / 12, "lower": 3 / 4})
