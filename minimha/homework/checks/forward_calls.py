"""A limit on how often a pullback may call its own forward pass: a gradient derived by hand needs
few such calls, if any.

The processes that run submissions use this file too, so it needs only the standard library.
"""

import functools
from collections.abc import Callable
from typing import Any

MOST = 2000
"""The largest number of calls of the forward pass in a pullback. A numeric gradient needs a call
for each entry of the inputs, and the checks have inputs with many more entries."""


def limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same as `function`, but whose pullbacks may call it no more
    than MOST times: the next call raises AssertionError. The count starts at 0 in each call of a
    pullback.

    While a pullback runs, the global variable with the function's name contains a version of the
    function that counts its calls.
    """
    name, names = getattr(function, "__name__", ""), getattr(function, "__globals__", {})

    def pulling(pullback: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(pullback)
        def call(*cotangents: Any) -> Any:
            calls = 0

            def counted(*arguments: Any, **settings: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > MOST:
                    raise AssertionError(
                        f"the pullback called {name} {MOST:,} times; it should use a formula.\n"
                        "A numeric gradient takes a call for each entry of the inputs; a formula\n"
                        "needs the values of the forward pass only once"
                    )
                return function(*arguments, **settings)

            names[name] = counted
            try:
                return pullback(*cotangents)
            finally:
                names[name] = function

        return call

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        returned = function(*arguments, **settings)
        pair = type(returned) is tuple and len(returned) == 2 and callable(returned[1])
        return (returned[0], pulling(returned[1])) if pair else returned

    return call if names.get(name) is function else function
