"""Every function of torch whose rows are apart may be in a loss, and the page says how many."""

import pytest

from tests.torch import loss_table

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_the_page_counts_what_is_accepted_and_nothing_else_is_refused():
    found = loss_table.judged()
    refused = {name for name, (_, why) in found.items() if why and not name.endswith("_copy")}
    assert refused == loss_table.REFUSED
    assert loss_table.page(found) in loss_table.PAGE.read_text("utf-8")
    assert {
        name for name, function, _ in loss_table.functions() if name[:2] == "F." and name not in found
    } == set()
