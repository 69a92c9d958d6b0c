"""Text of the built site can be read in light and in dark, at three widths: a real browser looks at it."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "docs" / "html"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCRIPT = (Path(__file__).parent / "contrast.js").read_text("utf-8")

needed = pytest.mark.skipif(BROWSER is None, reason="needs chromium")


def seen(page, folder, theme, width):
    """Texts of too little contrast, by how much the page is too wide, and how many texts it shows."""
    wide = "document.body.dataset.wide = document.documentElement.scrollWidth - window.innerWidth;"
    told = f"document.documentElement.dataset.theme = '{theme}'; {SCRIPT} {wide}"
    changed = page.read_text("utf-8").replace("</body>", f"<script>{told}</script></body>")
    copy = page.with_name(f"_{theme}-{width}-{page.name}")
    copy.write_text(changed, "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom"]
    try:
        shown = subprocess.run(
            [BROWSER, *options, f"--user-data-dir={folder}", f"--window-size={width},900", copy.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
    finally:
        copy.unlink()
    (contrast,) = re.findall(r'data-contrast="([^"]*)"', shown)
    (texts,) = re.findall(r'data-texts="(\d+)"', shown)
    (over,) = re.findall(r'data-wide="(-?\d+)"', shown)
    return json.loads(unescape(contrast)), int(over), int(texts)


@needed
@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "start", "compare", "api/optimize"])
def test_every_text_can_be_read(name, theme, tmp_path):
    if not SITE.exists():
        pytest.skip("make docs builds it")
    for width in (500, 900, 1400):
        faint, over, texts = seen(SITE / f"{name}.html", tmp_path / "browser", theme, width)
        assert faint == [] and over <= 0 and texts > 40, (width, faint, over, texts)


@needed
@pytest.mark.slow
def test_a_faint_text_and_a_wide_page_are_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        '<body style="background:#fff"><p style="color:#888;width:2000px">faint</p></body>', "utf-8"
    )
    (faint,), over, texts = seen(page, tmp_path / "browser", "light", 900)
    assert faint.startswith("3.54 P") and over > 1000 and texts == 1
