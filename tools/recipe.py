"""Writes build/recipe.yaml: the template with version and digest of the sdist in dist/, and the home."""

import hashlib
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


HOME = runpy.run_path(str(ROOT / "src/anechoic/statement/theorem.py"))["HOME"]


def filled(template: str, version: str, digest: str) -> str:
    """The template with its blanks filled: they stand in its context."""
    for name, value in (("version", version), ("sha256", digest), ("repository", HOME)):
        template, found = re.subn(rf'^  {name}: ".*"$', f'  {name}: "{value}"', template, flags=re.MULTILINE)
        if found != 1:
            raise ValueError(f"recipe.yaml has {found} lines of {name} in its context, and must have one.")
    return template


def main() -> None:
    (sdist,) = (ROOT / "dist").glob("anechoic-*.tar.gz")
    version = sdist.name.removeprefix("anechoic-").removesuffix(".tar.gz")
    text = filled(
        (ROOT / "recipe/recipe.yaml").read_text(), version, hashlib.sha256(sdist.read_bytes()).hexdigest()
    )
    out = ROOT / "build/recipe.yaml"
    out.parent.mkdir(exist_ok=True)
    out.write_text(text)
    print(out.relative_to(ROOT))


if __name__ == "__main__":
    main()
