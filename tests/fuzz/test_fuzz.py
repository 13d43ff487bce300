"""A few hundred hostile files for each reader; `make fuzz` tries a million."""

from pathlib import Path

import pytest

from fuzz.readers import READERS, Reader
from fuzz.trying import made, tried

QUICK = {"command line": 40, "config.json": 150}


@pytest.mark.parametrize("name", READERS)
def test_readers_raise_nothing_but_their_own_errors(name: str) -> None:
    found = tried(READERS[name], seed=1, numbers=range(QUICK.get(name, 250)))
    assert not found.failures, found.failures[0]
    assert found.read > 0  # else nothing behind the first check was ever tried


def test_a_reader_that_raises_anything_else_is_found_and_its_file_can_be_made_again() -> None:
    def read(folder: Path, content: bytes, rng: object) -> None:
        if len(content) > 3:
            raise KeyError(len(content))

    weak = Reader("weak", lambda rng: b"x" * rng.randrange(6), read)
    found = tried(weak, seed=0, numbers=range(100))
    assert len(found.failures) == 10
    for failure in found.failures:
        assert len(made(weak, 0, failure.number)) > 3
        assert "KeyError" in failure.error
