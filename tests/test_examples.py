"""Every example of README.md and docs/ is run by a test; see tests/support/examples.py."""

from tests.support.examples import MANUAL, PAGES, ROOT, RUN_BY, examples


def test_every_python_block_of_a_page_is_marked_as_an_example() -> None:
    unmarked = {
        page: blocks - len(examples(page))
        for page in PAGES
        if (blocks := (ROOT / page).read_text(encoding="utf-8").count("```python")) != len(examples(page))
    }
    assert not unmarked, f"blocks without a line <!-- example: NAME --> of their own: {unmarked}"


def test_every_example_is_run_by_a_test() -> None:
    assert RUN_BY.keys() == {page for page in PAGES if examples(page)}
    for page, files in RUN_BY.items():
        run = [name for names in files.values() for name in names or examples(page)]
        assert sorted(run) == sorted(examples(page)), f"{page}: update RUN_BY in tests/support/examples.py"
        for file, names in files.items():
            text = (ROOT / file).read_text(encoding="utf-8")
            missing = [name for name in names if f'"{name}"' not in text and file != MANUAL]
            assert not missing, f"{file} does not run {missing} of {page}"
