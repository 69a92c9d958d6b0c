import pytest

from studies.walks import PAGE, page

pytest.importorskip("torch")


@pytest.mark.slow
def test_the_walks_of_the_page_are_those_of_the_code():
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "python -m studies.walks --write"
