"""The page in a real browser: it loads without a word on the console or a request, its controls work, names are only text."""

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ube.errors import UsageError
from ube.figures.results import row
from ube.files import to_json, write_atomically
from ube.report import write_page
from ube.report.runs import _named
from ube.runs.directory import RunDirectory

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser_test = pytest.mark.skipif(BROWSER is None, reason="no browser: apt install chromium")
HOSTILE = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>"


def results(name: str, summary: list[Any], data: Any, settings: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "title": f"What {name} showed", "note": "a note", "command": f"ube reproduce {name}", "scale": "quick",
        "settings": settings or {}, "seeds": {"first": 0, "count": 2}, "versions": {"ube": "0.0"}, "seconds": 1.5,
        "figures": [], "summary": summary, "data": data, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page")
    curves = {
        "noise known": {
            "ube-ucb": {"mean": [1.0, 3.0, 2.0, 8.0], "error": [0.5] * 4},
            "psrl": {"mean": [2.0, 2.0, 4.0, 100.0], "error": [0.5] * 4},
        },
        "noise overrated": {"psrl": {"mean": [1.0, 2.0, 3.0, 4.0], "error": [0.1] * 4}},
    }
    regret = [
        row(agent, {"case": "noise known"}, "regret", value, value - 1, value + 1)
        for agent, value in (("ube-ucb", 1_234.0), ("psrl", 98.0))
    ]
    regret.append(row("greedy", {"case": "noise known"}, "regret", None))
    looks = [
        {"episode": 100 * i, "root_u": u, "root_variance": [[0.5, 0.0], [0.5, 0.25]], "visits": [[i, 0], [i, 0]]}
        for i, u in enumerate(([[2.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]))
    ]
    picture = {"agent": "ube-deep", "size": 2, "episodes_to_solve": 12, "looks": looks}
    solved = [row("ube-deep", {"size": size}, "episodes_to_solve", 10.0 * size, 5.0, None) for size in (10, 20)]
    for content in (
        results("riverswim", regret, {"episodes": [1, 10, 100, 1000], "curves": curves}),
        results("deepsea", solved, {"picture": picture, "not_run": []}),
        results("stranger", [row(HOSTILE, {"case": HOSTILE}, HOSTILE, 1.0)], {}, title=HOSTILE, note=HOSTILE),
    ):
        write_atomically(path / content["name"] / "results.json", to_json(content))
    training_run(path / "run0", "dqn", np.arange(10, 1_001, 10), np.linspace(0, 1, 100))
    training_run(path / "run1", HOSTILE, np.arange(10, 1_001, 10), np.linspace(0, 2, 100))
    training_run(
        path / "mine" / "cells" / "seldom" / "run", "bonus", np.array([300, 600, 1_200]), np.array([1.0, 2.0, 3.0])
    )
    for seed in range(2):  # alike but for the seed, and constant
        training_run(path / f"steady{seed}", "boot", np.arange(1, 1_001), np.full(1_000, 0.1), seed=seed, beta=1.0)
    training_run(path / "other", "boot", np.arange(1, 1_001), np.full(1_000, np.nan), beta=2.0)
    with (path / "other" / "episodes.jsonl").open("a") as file:
        file.write('{"step": 10')  # a process is at it
    (path / "broken").mkdir()
    (path / "broken" / "config.json").write_text("{}")
    return path


def training_run(path: Path, agent: str, step: np.ndarray, returns: np.ndarray, seed: int = 0, **fields: Any) -> None:
    with RunDirectory.locked(path) as run:
        env = f"Catch{HOSTILE}"
        run.begin({"env": env, "env_args": {}, "agent": {"name": agent, **fields}, "seed": seed, "steps": 1_000})
        run.append("episodes", {"step": step, "episode_return": returns})


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1_100, "height": 900}, color_scheme="light")
        said, asked = [], []
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(write_page(folder).as_uri())
        yield opened
        assert said == []
        assert all(url.startswith(("file:", "data:")) for url in asked), asked
        browser.close()


def column(table: Any, index: int) -> list[str]:
    return [line.locator("td").nth(index).inner_text() for line in table.locator("tbody tr").all()]


@browser_test
def test_names_are_only_text(page: Any) -> None:
    assert page.evaluate("window.hurt") is None
    assert HOSTILE in page.locator("#of-stranger h2").inner_text()
    assert HOSTILE in page.locator("#runs .legend button").all_inner_texts()
    assert page.locator("img[src=x]").count() == 0


@browser_test
def test_tables_sort_by_number_and_keep_what_is_unknown_last(page: Any) -> None:
    table = page.locator("#of-riverswim table").first
    assert column(table, 0) == ["ube-ucb", "psrl", "greedy"]
    head = table.locator("th button").nth(1)
    head.click()
    assert column(table, 1) == ["98 (97 to 99)", "1,234 (1,233 to 1,235)", "never"]
    head.click()
    assert column(table, 0) == ["greedy", "ube-ucb", "psrl"]  # never is the longest of times
    table.locator("th button").nth(0).press("Enter")
    assert column(table, 0) == ["greedy", "psrl", "ube-ucb"]


@browser_test
def test_charts_hide_smooth_take_logarithms_and_answer_the_pointer(page: Any) -> None:
    chart = page.locator("#of-riverswim .chart")
    lines = chart.locator("path.line")
    assert lines.evaluate_all("all => all.map(one => one.dataset.name)") == ["ube-ucb", "psrl"]
    assert [chart.get_by_label(f"log {axis}").is_checked() for axis in "xy"] == [True, True]
    chart.scroll_into_view_if_needed()
    box = chart.locator("svg").first.bounding_box()
    page.mouse.move(box["x"] + 0.97 * box["width"], box["y"] + 50)
    assert chart.locator(".tip").inner_text() == ("episodes 1,000\npsrl: 100 (99.5 to 101)\nube-ucb: 8 (7.5 to 8.5)")
    page.mouse.move(0, 0)
    assert chart.locator(".tip").is_hidden()
    before = lines.first.get_attribute("d")
    chart.get_by_label("log y").uncheck()
    assert lines.first.get_attribute("d") != before
    chart.locator(".legend button").nth(1).click()
    assert lines.evaluate_all("all => all.map(one => one.dataset.name)") == ["ube-ucb"]
    rough = lines.first.get_attribute("d")
    chart.get_by_label("smoothing").fill("1")
    page.mouse.move(box["x"] + 0.97 * box["width"], box["y"] + 50)
    assert "ube-ucb: 5 (4.5 to 5.5)" in chart.locator(".tip").inner_text()  # (2 + 8) / 2 at the end
    assert lines.first.get_attribute("d") != rough
    chart.locator("select").select_option(label="regret, noise overrated")
    assert chart.locator(".legend button").all_inner_texts() == ["psrl"]
    chart.locator(".legend button").click()
    assert lines.evaluate_all("all => all.map(one => one.dataset.name)") == ["psrl"]


@browser_test
def test_the_slider_goes_through_training(page: Any) -> None:
    maps = page.locator("#of-deepsea .maps")
    names = maps.locator("canvas").evaluate_all("all => all.map(one => one.dataset.map)")
    assert names == ["root_u", "root_variance", "visits"]
    pixel = "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, 2, 2).data)"
    first = maps.locator("canvas").first.evaluate(pixel)
    assert first[:4] == [253, 231, 37, 255]  # the largest
    assert first[7] == 0  # above the diagonal there is nothing
    assert "after 0 episodes" in maps.inner_text()
    maps.get_by_label("training").fill("1")
    assert "after 100 episodes" in maps.inner_text()
    assert maps.locator("canvas").first.evaluate(pixel)[:4] == [68, 1, 84, 255]  # nothing left to know there


@browser_test
def test_light_and_dark(page: Any) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(back) == "rgb(22, 24, 28)"
    page.locator("#theme").click()


@browser_test
def test_runs_are_drawn_whatever_they_are_like(page: Any) -> None:
    chart = page.locator("#runs .chart")
    chart.scroll_into_view_if_needed()
    chart.get_by_label("smoothing").fill(
        "1"
    )  # a constant is one no longer, by rounding: there must still be an end of ticks
    seldom = chart.locator('path.line[data-name="bonus"]').get_attribute("d")
    assert seldom.count("L") == 2
    assert len(chart.locator("svg text").all_inner_texts()) < 60
    box = chart.locator("svg").first.bounding_box()
    page.mouse.move(box["x"] + 0.95 * box["width"], box["y"] + 50)
    assert "boot, beta=1.0, 2 seeds: 0.1 (0.1 to 0.1)" in chart.locator(".tip").inner_text()
    page.set_viewport_size({"width": 390, "height": 800})
    chart.scroll_into_view_if_needed()
    box = chart.locator("svg").first.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 50)
    tip, outer = chart.locator(".tip").bounding_box(), chart.bounding_box()
    assert outer["x"] <= tip["x"]
    assert tip["x"] + tip["width"] <= outer["x"] + outer["width"] + 1
    page.set_viewport_size({"width": 1_100, "height": 900})
    assert "not a run of ube (KeyError: 'env_args')" in page.locator("#runs table").inner_text()


class Tags(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_hostile_words_in_every_place_add_no_element_and_ask_for_nothing(tmp_path: Path) -> None:
    def page(folder: Path, word: str) -> str:
        setting = {word: word, "case": word, "belief": word}
        content = results(
            word, [row(word, setting, word, word, word, word), row("b", {**setting, "size": word}, word, 1.0)], {word: word},
            {word: [word, {word: word}]}, title=word, note=word, command=word, versions={"ube": word, word: word},
        )  # fmt: skip
        write_atomically(folder / word.replace("/", "∕") / "results.json", to_json(content))
        for seed in range(2):
            with RunDirectory.locked(folder / f"{seed} {word.replace('/', '∕')}") as run:
                agent = {"name": word, word: f"{word}{seed}", "beta": word + str(seed)}
                run.begin({"env": word, "env_args": {word: word}, "agent": agent, "seed": 0, "steps": 10, "command": word,
                           "versions": {word: word}, word: word})  # fmt: skip
                run.append("episodes", {"step": [1, 5], "episode_return": [0.0, 1.0]})
        broken = folder / f"broken {word.replace('/', '∕')}"
        broken.mkdir()
        (broken / "config.json").write_text(json.dumps({"env": word, word: word, "agent": word}))
        return write_page(folder).read_text()

    calm = Tags(page(tmp_path / "calm", "word")).found
    for number, word in enumerate(
        (HOSTILE, HOSTILE.replace("'", '"'), "'\"><svg onload=alert(1)>", "javascript:alert(1)", "{{ 7*7 }}")
    ):
        text = page(tmp_path / str(number), word)
        found = Tags(text).found
        assert [tag for tag, _ in found] == [tag for tag, _ in calm]
        assert [sorted(names) for _, names in found] == [sorted(names) for _, names in calm]
        links = [value for _, names in found for name, value in names.items() if name in ("href", "src", "action")]
        assert all(link and link.startswith(("#", "data:image/svg+xml;base64,")) for link in links)
        assert "{{" not in word or "<h2>{{ 7*7 }}</h2>" in text  # shown, never computed
    policy = next(names["content"] for tag, names in calm if names.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in (policy or "")


def test_the_page_holds_runs_and_their_settings(folder: Path) -> None:
    text = write_page(folder).read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))  # type: ignore[union-attr]
    (chart,) = data["charts"]["runs"]
    series = {one["name"]: one for one in chart["series"]}
    assert series["dqn"]["y"][0] == 0.0
    assert series[HOSTILE]["y"][-1] == 2.0
    assert series["bonus"]["y"] == [1.0, 2.0, 3.0]
    assert series["bonus"]["x"] == [294.0, 594.0, 1194.0]  # it went on for longer than was asked
    assert series["boot, beta=1.0, 2 seeds"]["low"][0] == 0.1
    assert series["boot, beta=2.0"]["y"] == []
    assert "mine/cells/seldom<" in text


def test_runs_are_named_by_the_fields_in_which_they_differ_found_in_one_pass() -> None:
    class Number(int):
        compared = 0

        def __ne__(self, other: object) -> bool:
            Number.compared += 1
            return int(self) != int(other)  # type: ignore[call-overload]

    configs = [{"beta": Number(i % 3), "hidden": [4]} for i in range(300)]
    runs = [{"agent": "dqn", "config": {"agent": one}} for one in configs]
    runs.append({"agent": "boot", "config": {"agent": {"beta": 1}}})
    assert [name for _, name in _named(runs)] == [*(f"dqn, beta={i % 3}" for i in range(300)), "boot"]
    assert Number.compared <= 300


def test_a_folder_without_anything_and_results_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no results.json and no run"):
        write_page(tmp_path)
    old = results("chain", [row("a", {"case": "paper"}, "regret", 1.0)], {"curves": {}})
    write_atomically(tmp_path / "chain" / "results.json", to_json(old))
    remedy = (
        r"made by ube 0.0, this one \(.*\) cannot read it; run `ube reproduce chain` again, or remove it \(KeyError"
    )
    with pytest.raises(UsageError, match=remedy):
        write_page(tmp_path)
    write_atomically(tmp_path / "chain" / "results.json", "[]")
    with pytest.raises(UsageError, match=r"not a results file of ube"):
        write_page(tmp_path)


def test_a_folder_with_results_of_its_own_shows_those_below_as_well(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "below"):
        content = results("x", [row("a", {}, "m", 1.0)], {}, title=f"title {place.name}")
        write_atomically(place / "results.json", to_json(content))
    text = write_page(tmp_path).read_text()
    assert f"title {tmp_path.name}" in text
    assert "title below" in text
