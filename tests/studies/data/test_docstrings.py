"""Docstrings by section: what is found, what is left out, and that nothing is run."""

import json

import pytest

from studies.data.docstrings import docstrings

MODULE = '''"""What  the module
is for."""
raise RuntimeError("nothing here is run")

class One:
    """A class."""

    def method(self):
        """Its method."""

        def inner():
            "And what is in it."

async def two(): "A function."
def three(): pass
def four(): "A function."
'''


def test_sections_of_a_folder(tmp_path):
    package = tmp_path / "package"
    for name in ("package", "package/tests", "package/site-packages"):
        (tmp_path / name).mkdir()
    (package / "__init__.py").write_text('"A package with an escape: \\d."')
    (package / "module.py").write_text(MODULE)
    (package / "tests" / "other.py").write_text('"A test."')
    (package / "site-packages" / "other.py").write_text('"Installed."')
    (package / "broken.py").write_text('"""Not Python."""\nprint 1')
    assert docstrings(tmp_path) == {
        "package": "A package with an escape: \\d.",
        "package.module": "What the module is for.",
        "package.module.One": "A class. Its method. And what is in it.",
        "package.module.two": "A function.",
    }


def test_a_folder_without_any_is_refused(tmp_path):
    (tmp_path / "module.py").write_text("x = 1")
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileNotFoundError, match="holds no Python module with a docstring"):
            docstrings(folder)


@pytest.mark.slow  # 4 s
def test_the_library_of_this_python_has_enough_of_them():
    found = docstrings()
    assert len(found) > 2000 and sum(map(len, found.values())) > 10**6
    assert " ".join(json.JSONDecoder.__doc__.split()) in found["json.decoder.JSONDecoder"]
    assert not any("site-packages" in name or ".test." in name for name in found)
