"""The report as results.json, which an autograder leaves for Gradescope.

The format: https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

from __future__ import annotations

import json
from typing import Any

from ..verdicts import PASSED
from .reports import check_points, remarks


def as_gradescope(report: dict[str, Any]) -> str:
    """The report on one student. Gradescope shows the hidden checks when grades are published."""
    (student,) = report["students"]
    tests = [
        {
            "name": f"{task['task']}: {check['check']}",
            "status": "passed" if check["outcome"] == PASSED else "failed",
            "score": points,
            "max_score": out_of,
            "output": check["message"] or check["outcome"],
            "output_format": "text",
            "visibility": "after_published" if check["hidden"] else "visible",
        }
        for task in student["tasks"]
        for check, (points, out_of) in zip(task["checks"], check_points(task), strict=True)
    ]
    output = "\n".join([*remarks(student), *report["notes"], f"seed {report['seed']}"])
    results = {"score": student["points"], "output": output, "output_format": "text"}
    return json.dumps(results | {"tests": tests}, indent=1, ensure_ascii=False) + "\n"
