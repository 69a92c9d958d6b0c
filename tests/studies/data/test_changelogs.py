import gzip

from studies.data.changelogs import changelogs

DEBIAN = """\
tool (1.1) unstable; urgency=low

  * Fix   the build.
  * Say so.

 -- Ada Byron <ada@example.org>  Mon, 01 Jan 2024 00:00:00 +0000

tool (1.0) unstable; urgency=low

  * First.

 -- Grace Hopper <grace@example.org>  Sun, 01 Jan 2023 00:00:00 +0000
"""
GNU = """\
2024-02-01  Ada Byron  <ada@example.org>

\t* main.c (main): Return.

2024-01-01 12:30  Alan Turing  <alan@example.org>

\t* tape.c: New file.
"""


def write(folder, package, text, name="changelog.gz"):
    (folder / package).mkdir(parents=True, exist_ok=True)
    (folder / package / name).write_bytes(gzip.compress(text.encode()))


def test_entries_go_to_who_signed_them_below_or_stands_above(tmp_path):
    write(tmp_path, "tool", DEBIAN, "changelog.Debian.gz")
    write(tmp_path, "tool/more", GNU, "ChangeLog.gz")
    assert changelogs(tmp_path) == {
        "ada byron": ["* Fix the build. * Say so.", "* main.c (main): Return."],
        "alan turing": ["* tape.c: New file."],
        "grace hopper": ["* First."],
    }


def test_what_several_packages_repeat_counts_once(tmp_path):
    write(tmp_path, "tool", DEBIAN)
    write(tmp_path, "tool-doc", DEBIAN)
    write(tmp_path, "tool-dev", DEBIAN + "\n")  # another file with the same entries
    assert sum(map(len, changelogs(tmp_path).values())) == 2
