"""Every chapter runs in headless Chromium without a network, and its checks say what they say here.

python notebooks/local_pyodide.py build/pyodide
python notebooks/browser.py build/browser --pyodide build/pyodide
python -m pytest notebooks/test_browser.py
"""

import contextlib
import functools
import http.server
import io
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from answers import WRONG, function
from make import SOURCES, exercises

from minimha import homework
from minimha.__main__ import main

sync_api = pytest.importorskip("playwright.sync_api", reason='needs pip install ".[browser]"')
CHROMIUM = shutil.which("chromium")
SITE = Path(__file__).parents[1] / "build" / "browser"
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
MOST_SECONDS = 120

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH"),
    pytest.mark.skipif(not SITE.exists(), reason=f"needs the built course in {SITE}"),
]

NOTEBOOK = "window.jupyterapp?.shell.currentWidget"
KERNEL = f"{NOTEBOOK}?.sessionContext?.session?.kernel"
CELLS = f"{NOTEBOOK}?.content?.model?.sharedModel?.cells"
RUN_ALL = """() => {
    jupyterapp.commands.execute('notebook:run-all-cells').then(() => window.finished = true)
}"""
OUTPUTS = f"""() => {CELLS}.filter(cell => cell.cell_type == "code")
    .map(cell => [cell.source, cell.execution_count, cell.outputs])"""
WRITE = f"""([start, code]) =>
    {CELLS}.find(cell => cell.source.startsWith(start)).setSource(`${{start}}\n${{code}}`)"""
READ = "path => jupyterapp.serviceManager.contents.get(path, {content: true})"
EXECUTE = f"""async code => {{
    const said = [], running = {KERNEL}.requestExecute({{code}});
    running.onIOPub = ({{content: c}}) => said.push(c.text ?? c.traceback?.join("\\n") ?? "");
    const late = new Promise(done => setTimeout(done, {1000 * MOST_SECONDS}, "still running"));
    said.push(await Promise.race([running.done.then(() => ""), late]));
    return said.join("");
}}"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, each with its type."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript", ".wasm": "application/wasm",
    }  # fmt: skip

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture(scope="session")
def address():
    handler = functools.partial(Handler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A browser that keeps what it has loaded, as a student's does."""
    with sync_api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-dev-shm-usage", OFFLINE],
        )  # fmt: skip
        context.set_default_timeout(1000 * MOST_SECONDS)
        yield context
        context.close()


@pytest.fixture
def opened(browser, address):
    """opened(name) is a page with the chapter; its kernel is still starting."""
    pages = []

    def opened(name):
        pages.append(page := browser.new_page())
        page.goto(f"{address}/lab/index.html?path={name}.ipynb")
        page.wait_for_function(f"{CELLS}?.length > 1")  # an empty one comes first
        return page

    yield opened
    for page in pages:
        page.close()


def on_the_desktop(name, code):
    """What a check prints here."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        homework.check(function(name, code))
    return printed.getvalue()


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_chapter_runs_in_a_browser(source, opened, browser, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for the record of the checks
    requests = []
    browser.on("request", lambda request: requests.append(request.url))
    start = time.monotonic()
    page = opened(source.stem)
    page.wait_for_function(KERNEL)
    page.evaluate(RUN_ALL)
    page.wait_for_function("window.finished")
    took = time.monotonic() - start
    for code, count, outputs in page.evaluate(OUTPUTS):
        errors = [output for output in outputs if output["output_type"] == "error"]
        assert (errors, count is None) == ([], False), code
    assert took < MOST_SECONDS

    name = exercises(source)[0]
    wrong = next(answer.code() for answer in WRONG if answer.task == name)
    for code in (homework.course()[name].code(solved=True), wrong):
        said = page.evaluate(EXECUTE, f"{code}\n\nmh.homework.check({name})")
        assert said == on_the_desktop(name, code)
    assert all(url.startswith((address, "blob:", "data:")) for url in requests), requests


def test_work_is_kept_and_the_file_is_graded_like_any_other(opened, tmp_path, monkeypatch):
    answer = homework.course()["softmax"].code(solved=True)
    page = opened("05_attention")
    page.evaluate(WRITE, ["# minimha homework: softmax", answer])
    page.evaluate("jupyterapp.commands.execute('docmanager:save')")
    page.close()
    page = opened("05_attention")
    file = page.evaluate(READ, "05_attention.ipynb")
    student = tmp_path / "anna" / "05_attention.ipynb"
    student.parent.mkdir()
    student.write_text(json.dumps(file["content"]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["homework", "grade", ".", "--only", "softmax", "--json"]) == 0
    (grade,) = json.loads(Path("grades.json").read_text(encoding="utf-8"))["students"]
    assert grade["points"] == grade["out_of"] > 0
