"""The page says what the files of the last long run say."""

from faults.soak import BETWEEN, PAGE, PARTS, RESULTS, table


def test_the_counts_on_the_page_are_those_of_the_files() -> None:
    (shown,) = BETWEEN.findall(PAGE.read_text())
    assert shown == table(RESULTS)
    assert all(f"`{name}`" in shown for name in PARTS)
