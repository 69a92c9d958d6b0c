"""Files of records: a line that cannot be read takes no other with it, and is not shown."""

import pytest

from anechoic.streaming.tables import read_columns

ORDINARY = [f"{i},0.5" for i in range(5)]


def read(path, *lines, end="\n", name="a.csv"):
    (path / name).write_text("\n".join(lines) + end, encoding="utf-8", newline="")
    return read_columns(str(path / name), ["t", "v"])


@pytest.mark.parametrize(
    "odd",
    [
        '7,"',  # to the end of the file
        '7,"secret',
        '7,"secret"x',
        'secret,"0.5\n9,"',  # a field of two lines, which closes well
        "7," + "5" * 140_000,
    ],
)
def test_a_line_that_is_no_record_is_refused_by_its_number(tmp_path, odd):
    with pytest.raises(ValueError, match=r"line 4 of .*a.csv is no record") as caught:
        read(tmp_path, "t,v", *ORDINARY[:2], odd, *ORDINARY[2:])
    assert "secret" not in str(caught.value) and "5555" not in str(caught.value)
    assert caught.value.__context__ is None


def test_quotes_and_ends_of_lines_are_read(tmp_path):
    expected = {"t": ["1, 2", 'say "x"'], "v": ["0.5", ""]}
    lines = ["t,v", '"1, 2",0.5', "", '"say ""x""",']
    assert read(tmp_path, *lines) == expected
    assert read(tmp_path, *(line + "\r" for line in lines)) == expected
    assert read(tmp_path, *lines, end="") == expected
    with pytest.raises(ValueError, match="line 3 of .* has 1 fields, the head 2"):
        read(tmp_path, "t,v", "", "1")


@pytest.mark.parametrize(
    "odd", ["[" * 5000, '{"t": 1', '["secret"]', '"secret"', '{"t": ' + "9" * 5000 + "}"]
)
def test_a_line_that_is_no_json_is_refused_by_its_number(tmp_path, odd):
    with pytest.raises(ValueError, match=r"line 2 of .* is no JSON object") as caught:
        read(tmp_path, '{"t": 1, "v": 2}', odd, name="a.jsonl")
    assert "secret" not in str(caught.value)
