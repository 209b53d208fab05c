"""Opens every page of the built site in headless Chromium, without a network.

sphinx-build -c docs . build/site && pytest docs/test_site.py
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SITE = Path(os.environ.get("MINIMHA_SITE", Path(__file__).parents[1] / "build" / "site"))
TESTS = Path(tempfile.gettempdir(), f"pytest-of-{getpass.getuser()}")  # where CI runs the chapters
HERE = set(map(str, (Path.home(), Path.cwd(), Path(__file__).parents[1], TESTS)))
"""Folders of the machine that builds the site, which no page should show."""
CHROMIUM = shutil.which("chromium")
FRONT = "index.html"  # leads to docs/index.html
PAGES = sorted({str(page.relative_to(SITE)) for page in SITE.rglob("*.html")} - {FRONT})
WIDTHS = {"wide": 1280, "narrow": 400}

pytestmark = pytest.mark.skipif(not PAGES, reason=f"needs the built site in {SITE}")

FAULTS = r"""(() => {
    document.querySelectorAll("details").forEach(details => details.open = true);
    const faults = [];
    const root = document.documentElement;
    if (root.scrollWidth > root.clientWidth) {
        const wide = [...document.querySelectorAll("article *")].filter(
            x => x.getBoundingClientRect().right > root.clientWidth);
        faults.push(`scrolls sideways: ${root.scrollWidth} > ${root.clientWidth} pixels: `
            + wide.slice(0, 3).map(x => x.outerHTML.slice(0, 80)).join(" … "));
    }

    const luminance = color => {
        const [r, g, b] = color.match(/[\d.]+/g).map(
            c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const background = x => {
        const color = x ? getComputedStyle(x).backgroundColor : "rgb(255, 255, 255)";
        return color.startsWith("rgba") ? background(x.parentElement) : color;  // see-through
    };
    for (const x of document.querySelectorAll("article :is(math, p, th, td, pre)")) {
        const box = x.getBoundingClientRect();
        const drawn = box.width > 0 && box.height > 0;
        if (x.localName == "math" && !drawn) faults.push(`not drawn: ${x.textContent}`);
        const color = getComputedStyle(x).color;
        const hidden = color == "rgba(0, 0, 0, 0)";  // numbers that appear under the pointer
        const [dark, bright] = [color, background(x)].map(luminance).sort((a, b) => a - b);
        if (drawn && !hidden && (bright + 0.05) / (dark + 0.05) < 4.5)
            faults.push(`hard to read: ${x.outerHTML.slice(0, 120)}`);
    }

    const words = document.querySelector("article").cloneNode(true);
    words.querySelectorAll("pre, code, script, style").forEach(x => x.remove());
    for (const tex of words.textContent.match(/\\[a-zA-Z]+.{0,40}|\$\$.{0,40}/g) ?? [])
        faults.push(`raw TeX: ${tex}`);
    return faults;
})()"""


class Browser:
    """Chromium's DevTools protocol over pipes: each message is JSON and ends with a zero byte."""

    def __init__(self, profile: Path) -> None:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        flags += ["--disable-dev-shm-usage"]  # a container often has little shared memory
        # Chromium reads messages from descriptor 3 and writes them to descriptor 4.
        pipes = ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', "sh"]
        offline = ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            [*pipes, CHROMIUM, *flags, *offline],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self.session, self.sent, self.unread, self.events = {}, 0, b"", []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.session = {"sessionId": session}
        for domain in "Page", "Runtime", "Log", "Network":
            self(f"{domain}.enable")

    def receive(self) -> dict:
        while b"\0" not in self.unread:
            part = self.process.stdout.read(1 << 16)
            assert part, "Chromium has ended"
            self.unread += part
        message, _, self.unread = self.unread.partition(b"\0")
        return json.loads(message)

    def __call__(self, method: str, **params) -> dict:
        self.sent += 1
        call = {"id": self.sent, "method": method, "params": params, **self.session}
        self.process.stdin.write(json.dumps(call).encode() + b"\0")
        while (message := self.receive()).get("id") != self.sent:
            self.events.append(message)
        assert "error" not in message, message["error"]
        return message["result"]

    def run(self, script: str) -> object:
        result = self("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"]["value"]

    def look(self, width: int, scheme: str) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self("Emulation.setDeviceMetricsOverride", **size)
        preference = {"name": "prefers-color-scheme", "value": scheme}
        self("Emulation.setEmulatedMedia", features=[preference])

    def open(self, page: Path) -> list[str]:
        """Open the page. Return what its console says and what it requests from outside."""
        self.events = []
        self("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())
        return list(filter(None, map(fault, self.events)))


def fault(event: dict) -> str | None:
    """A request to an outside host, an error, or a line in the console; None for other events."""
    match event:
        case {"method": "Network.requestWillBeSent", "params": {"request": {"url": url}}}:
            return None if url.startswith(("file:", "data:")) else f"outside request: {url}"
        case {"method": "Runtime.consoleAPICalled", "params": {"args": args}}:
            return f"console: {[x.get('value', x.get('description')) for x in args]}"
        case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
            return f"uncaught: {details.get('exception', details).get('description')}"
        case {"method": "Log.entryAdded", "params": {"entry": entry}}:
            return f"console: {entry['text']} {entry.get('url', '')}"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_no_path_of_the_machine_that_built_it(page):
    text = (SITE / page).read_text(encoding="utf-8")
    assert not [folder for folder in HERE if f"{folder}/" in text]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    with browser.process:
        browser("Browser.close")


def test_the_address_of_the_site_leads_to_the_first_page():
    (target,) = re.findall(r"url=([^\"]+)", (SITE / FRONT).read_text(encoding="utf-8"))
    assert target in PAGES


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_needs_no_network_and_its_formulas_are_drawn(browser, page):
    faults = browser.open(SITE / page)
    for width, pixels in WIDTHS.items():
        for scheme in "light", "dark":
            browser.look(pixels, scheme)
            faults += [f"{width}, {scheme}: {fault}" for fault in browser.run(FAULTS)]
    assert not faults, "\n".join(faults)
