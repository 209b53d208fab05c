"""Python in a process of its own."""

import os
import subprocess
import sys


def output_of(code, *arguments, **environment):
    """What this code prints, with these variables added to the environment. It must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
