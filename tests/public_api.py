"""The public API, one line for each name: what users' code depends on.

PYTHONPATH=tests python -m public_api   writes tests/public_api.txt anew
"""

import argparse
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace

import minimha
import minimha_pytest
from minimha.__main__ import _parser

PAGE = Path(__file__).with_suffix(".txt")
COMMAND = "PYTHONPATH=tests python -m public_api"


def lines():
    """All names, sorted: those of the packages, of the command and of the pytest plugin."""
    return sorted({*_of_module("minimha", minimha), *_of_command("minimha", _parser()), *_plugin()})


def _of_module(name, module):
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if isinstance(value, ModuleType):
            yield from _of_module(f"{name}.{public}", value)
            continue
        yield f"{name}.{public}{_signature(value)}"
        if inspect.isclass(value) and (name == "minimha" or not hasattr(minimha, public)):
            for member in vars(value):  # base classes have lines of their own
                if member == "__call__" or member[0] != "_":
                    yield f"{name}.{public}.{member}{_signature(getattr(value, member, None))}"


def _signature(value):
    """Parameters and defaults, without annotations; nothing for what is not called."""
    if not callable(value):
        return ""
    try:
        signature = inspect.signature(value)
    except ValueError:  # a class of Python's, such as an exception
        return "(…)"
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    return re.sub(r"<(?:function|class) '?([\w.<>]+)[^>]*>", r"\1", text)


def _of_command(name, parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, inner in action.choices.items():
                yield from _of_command(f"{name} {command}", inner)
        elif action.dest != "help":
            yield f"{name} {', '.join(action.option_strings) or action.metavar or action.dest}"


def _plugin():
    """Options, markers and fixtures."""
    options = []
    group = SimpleNamespace(addoption=lambda *names, **_: options.append(", ".join(names)))
    minimha_pytest.pytest_addoption(SimpleNamespace(getgroup=lambda *_: group))
    command = [sys.executable, "-m", "pytest", "-p", "minimha_pytest", "--fixtures"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with TemporaryDirectory() as empty:
        settings = {"cwd": empty, "env": environment, "capture_output": True, "encoding": "utf-8"}
        shown = subprocess.run(command, check=False, **settings).stdout
    fixtures = re.findall(r"^(\w+) -- .*minimha_pytest", shown, re.MULTILINE)
    yield from (f"pytest {option}" for option in options)
    yield from (f"pytest fixture {name}" for name in fixtures)


if __name__ == "__main__":
    PAGE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
