"""The students' edition of minimha as a wheel: https://packaging.python.org/specifications/binary-distribution-format/"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import minimha_autograd

from ...course import notebooks
from .. import replay, student_files
from ..answers import mark
from ..calls import Call, calls_recorded
from ..catalogue import course
from ..solutions import stubbed
from ..task import Task, source_of
from .public import public

_PACKAGES = [Path(__file__).parents[2], Path(minimha_autograd.__file__ or "").parent]
_TASKS = Path("minimha") / "homework" / "tasks"


def write(folder: Path, own: Path | None, *, hidden: bool) -> Path:
    """Write the wheel into a folder and return its path.

    own     a file with tasks of the teacher's own, which become part of the course
    hidden  whether to leave out the hidden checks
    """
    distribution = importlib.metadata.distribution("minimha")
    version = f"{distribution.version}+students"
    about = f"minimha-{version}.dist-info"
    metadata = distribution.read_text("METADATA") or ""
    files = dict(_files(own, hidden=hidden)) | {
        f"{about}/METADATA": metadata.replace(
            f"\nVersion: {distribution.version}\n", f"\nVersion: {version}\n", 1
        ).encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: minimha\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        f"{about}/entry_points.txt": (distribution.read_text("entry_points.txt") or "").encode(),
    }
    record = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    path = folder / f"minimha-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # without a date: the same each time
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _files(own: Path | None, *, hidden: bool) -> Iterator[tuple[str, bytes]]:
    """The files of the wheel, by their path in it."""
    for package in _PACKAGES:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package.parent)
            skipped = "__pycache__" in path.parts or "notebooks" in inside.parts[:2]
            if path.is_file() and not skipped and inside.parent != _TASKS:
                yield inside.as_posix(), path.read_bytes()
    plugin = _PACKAGES[1].parent / "minimha_pytest.py"
    yield plugin.name, plugin.read_bytes()
    for path in notebooks():
        yield f"minimha/notebooks/{path.name}", notebook(path).encode()
    sources = {path.name: path for path in sorted((_PACKAGES[0].parent / _TASKS).glob("*.py"))}
    if own:
        sources["own.py"] = own
    for name, path in sources.items():
        if not name.endswith("_mistakes.py"):
            text = public(path.read_text(encoding="utf-8"), hidden=hidden)
            yield (_TASKS / name).as_posix(), text.encode()
    yield (_TASKS / replay.FILE.name).as_posix(), replay.packed(_results(hidden=hidden))


def _results(*, hidden: bool) -> replay.Results:
    """What the solutions return in each public check of each task."""
    found: replay.Results = {}
    tasks = list(course().values())
    for task in tasks:
        for check in task.checks:
            if hidden and check.hidden:
                continue
            calls: dict[str, list[Call]] = {other.name: [] for other in tasks}
            inside: list[Call] = []
            for other in tasks:
                other.answer = calls_recorded(other.solution, calls[other.name], inside=inside)
            try:
                check.holds(task.solution, task.rng(check))
            finally:
                for other in tasks:
                    other.answer = other.solution
            made = {name: list(map(replay.stored, some)) for name, some in calls.items() if some}
            found.setdefault(task.name, {})[check.name] = made
    return found


def code(task: Task) -> str:
    """The functions that students get in a release. A given function that is itself a task has no
    solution either."""
    return "\n\n".join(stubbed(source_of(f)) for f in [*task.given, task.solution])


def notebook(path: Path) -> str:
    """A chapter with the tasks as they are released."""
    text = json.loads(path.read_text(encoding="utf-8"))
    for cell in text["cells"]:
        name = mark("".join(cell["source"])) if cell["cell_type"] == "code" else None
        if name in course():
            cell["source"] = student_files.cell(name, code(course()[name]))
    return json.dumps(text, indent=1, ensure_ascii=False) + "\n"
