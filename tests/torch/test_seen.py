"""Each mistake is refused in its words, and the page has those that people meet."""

import re
from pathlib import Path

import pytest

from tests.torch.seen import RUNS, SEEN, page

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("entry", SEEN, ids=[entry[1] for entry in SEEN])
def test_a_mistake_is_refused_with_what_to_write(entry):
    _, _, done, said, _ = entry
    with pytest.raises(Exception, match=re.escape(said)):
        done()


@pytest.mark.parametrize("name", RUNS)
def test_what_runs(name):
    RUNS[name]()


def test_the_page_has_the_list():
    assert page() in (ROOT / "docs" / "training.md").read_text("utf-8")
