"""A run directory: what was asked (config.json), what happened (episodes.jsonl, metrics.jsonl), what was learned
(state.safetensors). Plain files that run no code when loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ube.errors import UsageError
from ube.files import to_json, write_atomically

Columns = dict[str, np.ndarray]
CONFIG, STATE = "config.json", "state.safetensors"


class RunDirectory:
    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> RunDirectory:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} exists and is not empty: choose another place (--out), or remove it")
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / CONFIG, to_json(config, digits=17))
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        if not (path / CONFIG).is_file():
            raise UsageError(f"{path} is not a run: it has no {CONFIG}; give a folder that `ube train` wrote")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        try:
            return json.loads((self.path / CONFIG).read_text())
        except ValueError as error:
            raise UsageError(f"{self.path / CONFIG} is not JSON ({error})") from None

    def append(self, name: str, columns: dict[str, Any]) -> None:
        """Adds rows to NAME.jsonl: columns of equal length, or one number each."""
        lists = {key: np.atleast_1d(value).tolist() for key, value in columns.items()}
        rows = zip(*lists.values(), strict=True)
        with (self.path / f"{name}.jsonl").open("a") as file:
            file.writelines(json.dumps(dict(zip(lists, row, strict=True))) + "\n" for row in rows)

    def columns(self, name: str) -> Columns:
        """All rows of NAME.jsonl; none if the run never got there. A column missing in some rows is NaN there."""
        path = self.path / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        names = dict.fromkeys(key for row in rows for key in row)
        return {key: np.array([row.get(key, np.nan) for row in rows]) for key in names}

    def save_state(self, tree: Any) -> None:
        leaves = {name: np.array(leaf, order="C") for name, leaf in _named_leaves(tree)}
        write_atomically(self.path / STATE, save(leaves))

    def load_state(self, like: Any) -> Any:
        """The saved state, in the shape of `like` (arrays or their shapes)."""
        try:
            saved = load_file(self.path / STATE)
        except FileNotFoundError:
            raise UsageError(f"{self.path} has no {STATE}: the run did not come to its end") from None
        except SafetensorError as error:
            raise UsageError(f"{self.path / STATE} cannot be read ({error})") from None
        for name, leaf in _named_leaves(like):
            wanted = f"{leaf.dtype} {tuple(leaf.shape)}"
            found = f"{saved[name].dtype} {saved[name].shape}" if name in saved else "nothing"
            if found != wanted:
                raise UsageError(f"{self.path / STATE}: {name} should be {wanted}, found {found}")
        names = [name for name, _ in _named_leaves(like)]
        return jax.tree.unflatten(jax.tree.structure(like), [saved[name] for name in names])


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
