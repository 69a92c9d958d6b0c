"""Installs what `make dist` built into empty environments, and tries it there, from another folder.

    python tools/dist_check.py                              this interpreter: the wheel alone, no extra
    python tools/dist_check.py --python 3.12 --extras sklearn,streaming
    python tools/dist_check.py --from sdist --extras demo   what pip builds of the sdist; torch, and the demo
    python tools/dist_check.py --extras demo --before torch==2.13.0    with a build of your own choice

Each `--python` is a command, a path, or the number of a `pythonX.Y`; several are tried one after another.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"
#: Bytes that the wheel may have: the code, and 1.7 MB of flights for the demo.
WHEEL = 3_500_000


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(
            f"dist_check: {folder} holds {len(found)} of {pattern}, and must hold one: make dist"
        )
    return found[0]


def check_contents(wheel: Path, sdist: Path) -> None:
    """Version, size, links and files of both."""
    found = re.search(
        r'^__version__ = "(.+)"$', (ROOT / "src/anechoic/__init__.py").read_text(), re.MULTILINE
    )
    version = found[1] if found else ""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        said = message_from_string(archive.read(info).decode())
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    strangers = {name.split("/")[0] for name in names} - {"anechoic", f"anechoic-{version}.dist-info"}
    links = re.findall(r"\]\(([^)]+)\)", str(said.get_payload()))
    for wrong, what in (
        (said["Version"] != version, f"the wheel is of version {said['Version']}, the source of {version}"),
        (wheel.stat().st_size > WHEEL, f"the wheel has {wheel.stat().st_size:,} bytes, over {WHEEL:,}"),
        (strangers, f"the wheel holds {sorted(strangers)} beside the package"),
        (any(not link.startswith(("https://", "#")) for link in links), f"links: {links}"),
        (
            not {"LICENSE", "README.md", "pyproject.toml", "src/anechoic/py.typed"} <= sources,
            "sdist lacks files",
        ),
    ):
        if wrong:
            raise SystemExit(f"dist_check: {what}")
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; {sdist.name}: {sdist.stat().st_size:,} bytes")


def interpreter(name: str) -> str:
    asked = f"python{name}" if re.fullmatch(r"3\.\d+", name) else name
    if (found := shutil.which(asked)) is None:
        raise SystemExit(f"dist_check: there is no {asked} on this machine")
    return found


def try_out(python: str, package: Path, extras: str, before: list[str], keep: Path | None) -> None:
    """A new environment with `before`, then the package and its extras, and the smoke test in it."""
    with tempfile.TemporaryDirectory() as folder:
        env = (keep or Path(folder)) / "env"
        subprocess.run([python, "-m", "venv", "--clear", env], check=True)
        bin_python = env / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        asked = f"{package}[{extras}]" if extras else str(package)
        pip = [bin_python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        for packages in filter(None, (before, [asked])):
            subprocess.run([*pip, *packages], check=True, cwd=folder)
        subprocess.run([bin_python, "-m", "pip", "check"], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        subprocess.run([bin_python, "-I", TOOLS / "smoke.py"], check=True, cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="default: dist/")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="default: this one")
    parser.add_argument("--extras", default="", help="with commas between them")
    parser.add_argument("--before", nargs="*", default=[], metavar="PACKAGE", help="installed first")
    parser.add_argument("--from", dest="source", choices=("wheel", "sdist"), default="wheel")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the environment in DIR/env")
    options = parser.parse_args()
    files = {"wheel": only(options.dist, "*.whl"), "sdist": only(options.dist, "*.tar.gz")}
    check_contents(files["wheel"], files["sdist"])
    for python in map(interpreter, options.python):
        try_out(python, files[options.source].resolve(), options.extras, options.before, options.keep)


if __name__ == "__main__":
    main()
