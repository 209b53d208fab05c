"""The pytest plugin, active on install: the array libraries that tests run on.

    pytest --array-backend numpy,array-api-strict,torch,cupy

A test that asks for the fixture `xp` runs once for each of these libraries, and is skipped with
the reason where one is not there. Without the option that is NumPy alone.
"""

from __future__ import annotations

from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register --array-backend."""
    parser.getgroup("minimha").addoption(
        "--array-backend",
        default="numpy",
        metavar="NAMES",
        help="array libraries for tests that use the fixture xp, separated by commas: "
        "numpy, array-api-strict, torch, cupy (default: numpy)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks for xp on every library named."""
    if "xp" in metafunc.fixturenames:
        names = metafunc.config.getoption("--array-backend").split(",")
        metafunc.parametrize("xp", [name.strip() for name in names], indirect=True)


@pytest.fixture
def xp(request: pytest.FixtureRequest) -> Any:
    """The array-API namespace of a library asked for on the command line."""
    from minimha_autograd import backend

    try:
        return backend.library(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
