"""Makes `make` importable for the tests of the chapters."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
