"""Suites open no port themselves: they join a cluster that is there, and the one they propose is for this machine alone."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ube import UsageError
from ube.suite.execute import _connected


def test_ray_is_joined_and_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        asked.append(options)
        raise ConnectionError

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(UsageError, match=r"no Ray cluster .* --node-ip-address=127.0.0.1 --include-dashboard=false"):
        _connected(None)
    assert [options["address"] for options in asked] == ["auto"]  # without an address Ray would start one
