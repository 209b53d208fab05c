"""No line of a task's solution stands where students read, beside those that SHOWN lists.

The tests of releases look at everything that a release contains; they run only with --thorough.
"""

import solution_lines
from solution_lines import SHOWN, places, solutions, too_early


def test_package_and_chapters_show_no_line_of_a_solution():
    lines = solutions()
    assert len(lines) > 200
    found = list(too_early(lines))
    advice = "\nwrite it in another way, or list it in SHOWN of tests/solution_lines.py"
    assert not found, "\n".join(found) + advice


def test_each_line_of_the_list_is_still_shown():
    first = {line: min(shown)[0] for line, shown in places(list(SHOWN)).items()}
    assert first == SHOWN, "mend SHOWN in tests/solution_lines.py: the first chapter of each line"


def test_a_shown_line_is_found_however_it_is_spaced_and_named_by_its_place(monkeypatch):
    line = "best = scores.max(axis=-1, keepdims=True)"
    path = solution_lines.ROOT / "minimha" / "nn" / "layers.py"
    text = "one\ntwo\n    best = scores.max(\n        axis=-1, keepdims=True)\n"
    monkeypatch.setattr(solution_lines, "texts", lambda: [(path, 1, text)])
    assert list(too_early([line])) == [f"minimha/nn/layers.py:3 shows a line of a solution: {line}"]
