"""The marks of tests that compare with Hugging Face's transformers."""

from importlib.util import find_spec

import pytest

MARKS = [
    pytest.mark.thorough,  # transformers takes seconds to import
    pytest.mark.skipif(
        not (find_spec("torch") and find_spec("transformers")),
        reason="torch and transformers are not installed",
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
