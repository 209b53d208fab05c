"""The pytest plugin, active on install: the array libraries that tests run on.

    pytest --array-backend numpy,array-api-strict,torch,cupy

A test that asks for the fixture `xp` runs once for each of these libraries, and is skipped with
the reason where one is not there. Without the option that is NumPy alone.
"""

from __future__ import annotations

from typing import Any

import pytest

KNOWN = ("numpy", "array-api-strict", "torch", "cupy")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register --array-backend."""
    parser.getgroup("minimha").addoption(
        "--array-backend",
        default="numpy",
        metavar="NAMES",
        help="array libraries for tests that use the fixture xp, separated by commas: "
        f"{', '.join(KNOWN)} (default: numpy)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the fixture xp for the libraries named; a project's own xp still overrides it."""
    names = [name.strip() for name in config.getoption("--array-backend").split(",")]
    for name in names:
        if name not in KNOWN:
            raise pytest.UsageError(f"--array-backend: {name!r} is not one of {', '.join(KNOWN)}")

    class Libraries:
        @pytest.fixture(params=list(dict.fromkeys(names)))
        def xp(self, request: pytest.FixtureRequest) -> Any:
            """The array-API namespace of a library asked for on the command line."""
            from minimha_autograd import backend  # not for those who never ask for xp

            try:
                return backend.library(request.param)
            except RuntimeError as error:
                pytest.skip(str(error))

    config.pluginmanager.register(Libraries(), "minimha-xp")
