"""JSON files that have been damaged: one entry with another value, or another content."""

import itertools
import json

import pytest

STEPS = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.thorough)])
"""How many of the damages of entries a test tries: by default every seventh."""
VALUES = [[8], {"a": 1}, "16", 1.5, True, None, -1, 0, 10**18, 10**400, 1e400, ...]
"""Values for an entry; ... removes it."""
CONTENTS = [
    b"[8]", b'{"a": 1}', b'"16"', b"1.5", b"true", b"null", b"{", b"", b"\xff", b"[" * 10**5, b"9" * 5000,
]  # fmt: skip
"""Contents of a file."""


def mutations(path, step=1):
    """Damage the object or the list in a file in each way, and yield every time what was changed and
    its value: the name or index of an entry, or the name of the file. At the end the file is as it was."""
    content = path.read_bytes()
    entries = json.loads(content)
    names = entries if isinstance(entries, dict) else range(len(entries))
    for name, value in itertools.islice(itertools.product(names, VALUES), 0, None, step):
        changed = entries.copy()
        changed[name] = value
        if value is ...:
            del changed[name]
        path.write_text(json.dumps(changed), encoding="utf-8")
        yield name, value
    for damaged in CONTENTS:
        path.write_bytes(damaged)
        yield path.name, damaged
    path.write_bytes(content)


def refusal(call, *arguments):
    """The message of the ValueError, which has one line; "" if there is none."""
    message = ""
    try:
        call(*arguments)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message
    return message
