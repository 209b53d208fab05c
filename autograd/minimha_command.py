"""The command `minimha`: Ctrl-C ends it with one line, even while its modules are being loaded."""

from __future__ import annotations

import os
import signal
from typing import Any


def main() -> int:
    """Load minimha, and run its command with the arguments of the process. Returns the exit
    code. Until minimha is loaded, Ctrl-C ends the process at once."""
    before = signal.signal(signal.SIGINT, _interrupted)
    from minimha.__main__ import main

    signal.signal(signal.SIGINT, before)
    return main()


def _interrupted(*_: Any) -> None:
    """End the process on Ctrl-C. An exception would not do, since a module that is being loaded
    might catch it."""
    os.write(2, b"minimha: interrupted\n")
    os._exit(130)
