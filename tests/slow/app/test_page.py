"""The planner page in headless Chromium: every control, wrong input, narrow and dark."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

for needed in ("nicegui", "selenium", "matplotlib"):
    pytest.importorskip(needed)

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs Debian's chromium, chromium-driver"),
]
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--lang=en")
PATIENCE = 120  # seconds of a busy machine
SMALL = {"batch_size": "50", "epochs": "2", "delta": "1e-4", "examples": "400"}


@pytest.fixture(scope="module")
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = free.getsockname()[1]
    # pytest's own variable would have the server believe that it is under test
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    command = [sys.executable, "-m", "anechoic", "app", "--no-browser", "--port", str(found)]
    server = subprocess.Popen(command, env=environment)
    try:
        until(lambda: listens(found))
        yield found
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.folder = tmp_path_factory.mktemp("downloads")
    where = {"behavior": "allow", "downloadPath": str(driver.folder)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    try:
        yield driver
    finally:
        driver.quit()


def until(true):
    """What `true` returns once it is."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {PATIENCE} s")


def listens(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


class Tab:
    def __init__(self, browser, port, width=1280, dark=False):
        self.browser = browser
        scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(f"http://127.0.0.1:{port}/")
        until(lambda: self.fields("examples"))

    def js(self, code, *given):
        return self.browser.execute_script(code, *given)

    def fields(self, name):
        return self.browser.find_elements(By.CSS_SELECTOR, f"input[data-name={name}], div[data-name={name}]")

    def field(self, name):
        return self.fields(name)[0]

    def type(self, name, text):
        self.field(name).send_keys(Keys.CONTROL, "a")
        self.field(name).send_keys(text or Keys.BACKSPACE)

    def fill(self, given):
        for name, text in given.items():
            self.type(name, text)

    def said(self):
        return self.js("return document.querySelector('[role=status]').textContent")

    def code(self):
        return self.js("return document.querySelector('pre')?.textContent ?? ''")

    def shows(self, *texts):
        """Wait for a finished answer whose code has these texts."""
        until(lambda: self.said().startswith("Computed") and all(text in self.code() for text in texts))

    def error(self, name):
        box = "return arguments[0].closest('.q-field').querySelector('[role=alert]')?.textContent ?? ''"
        return self.js(box, self.field(name))

    def press(self, words):
        self.browser.find_element(By.XPATH, f"//button[contains(., '{words}')]").click()

    def choose(self, name, words):
        self.field(name).click()
        option = (By.XPATH, f"//*[@role='option'][contains(., '{words}')]")
        until(lambda: self.browser.find_elements(*option))[0].click()


@pytest.fixture
def tab(browser, port):
    found = Tab(browser, port)
    found.fill(SMALL)
    found.shows("examples=400", "batch_size=50", "epochs=2", "delta=0.0001")
    return found


def test_every_control(tab):
    for name, text, source in (
        ("epsilon", "3", "epsilon=3"),
        ("dimension", "1000", "dimension=1_000"),
        ("memory_budget", "1MB", "memory_budget='1MB'"),
        ("momentum", "0.5", "UpdateRule('sgd', 0.5)"),
    ):
        tab.type(name, text)
        tab.shows(source)
    for name, words, source in (
        ("sampling", "Fixed order", "sampling='fixed_order'"),
        ("schedule", "Cosine", "scheduler='cosine'"),
        ("keep", "A mean", "keep='average'"),
    ):
        tab.choose(name, words)
        tab.shows(source)
    tab.browser.find_element(By.CSS_SELECTOR, "[aria-label=Adam]").click()
    tab.shows("optimizer='adam'")
    assert not tab.field("momentum").is_displayed()
    tab.browser.find_element(By.CSS_SELECTOR, "[aria-label='Time order']").click()
    tab.shows("random_sampling=False")
    assert not tab.field("epochs").is_displayed() and not tab.field("sampling").is_displayed()
    tab.fill({"min_sep": "3", "max_participations": "2"})
    tab.shows("MinSep(separation=3, max_participations=2)")
    shown = tab.browser.find_elements(By.CSS_SELECTOR, ".results img")
    assert len(shown) == 2 and all(picture.get_attribute("alt") for picture in shown)
    assert tab.browser.find_elements(By.CSS_SELECTOR, ".results td.best")


def test_what_is_copied_and_saved(tab):
    origin = tab.js("return location.origin")
    allowed = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": origin}
    tab.browser.execute_cdp_cmd("Browser.grantPermissions", allowed)
    tab.press("Copy as Python")
    read = "navigator.clipboard.readText().then(arguments[0], e => arguments[0](String(e)))"
    until(lambda: tab.browser.execute_async_script(read) == tab.code())
    for words, name in (
        ("statement (text)", "privacy-statement.txt"),
        ("statement (JSON)", "privacy-statement.json"),
        ("Download mechanism", "mechanism.json"),
    ):
        tab.press(words)
        until((tab.browser.folder / name).exists)
    saved = {path.name: path.read_text("utf-8") for path in tab.browser.folder.iterdir()}
    fingerprint = json.loads(saved["privacy-statement.json"])["fingerprint"]
    assert fingerprint in saved["privacy-statement.txt"] and json.loads(saved["mechanism.json"])


def test_wrong_input_has_the_librarys_error_beside_it(tab):
    for name, text, said in (
        ("examples", "abc", "examples='abc' must be an integer"),
        ("epsilon", "-1", "epsilon=-1 must be a finite number > 0"),
        ("batch_size", "500", "batch_size=500 exceeds examples=400: take smaller batches."),
        ("memory_budget", "2XB", "is not a size"),
    ):
        before = tab.field(name).get_attribute("value")
        tab.type(name, text)
        until(lambda name=name, said=said: said in tab.error(name))
        assert tab.field(name).get_attribute("aria-invalid") == "true"
        assert not tab.browser.find_element(By.CSS_SELECTOR, ".results").is_displayed()
        tab.type(name, before)
        tab.shows("examples=400")
        until(lambda name=name: tab.error(name) == "")  # it fades out


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 820, 390])
def test_screens(browser, port, width, dark):
    tab = Tab(browser, port, width, dark)
    tab.fill(SMALL)
    tab.shows("examples=400", "delta=0.0001")
    wide, inner = tab.js("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= inner  # only the table scrolls sideways
    form, answer = (
        tab.browser.find_element(By.CSS_SELECTOR, name).rect for name in ("form", "form + section")
    )
    beside = answer["x"] >= form["x"] + form["width"]
    assert beside if width > 820 else answer["y"] >= form["y"] + form["height"]
    paper = tab.js("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(22, 25, 29)" if dark else "rgb(255, 255, 255)")


def test_it_speaks_to_this_machine_alone(tab, port):
    messages = [json.loads(entry["message"])["message"] for entry in tab.browser.get_log("performance")]
    asked = {one.get("params", {}).get("request", {}).get("url", "") for one in messages} - {""}
    own = (f"http://127.0.0.1:{port}/", "data:", f"blob:http://127.0.0.1:{port}/")
    assert asked and all(url.startswith(own) for url in asked), asked
    assert not [entry for entry in tab.browser.get_log("browser") if entry["level"] == "SEVERE"]
    with pytest.raises(urllib.error.HTTPError) as refused:  # a page elsewhere whose name leads here
        request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": "evil.example"})
        urllib.request.urlopen(request)
    assert refused.value.code == 400
    refused.value.close()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if state == "0A" and int(local.split(":")[1], 16) == port:
            assert local.startswith("0100007F")
