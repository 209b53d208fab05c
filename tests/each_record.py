"""What the generic tests of all records in samples.py have in common."""

import inspect
from functools import partial

import pytest
from samples import RECORDS

from minimha_autograd import backend

SLOW = {
    "multi_head_attention", "project_fused", "ring", "linear_attention", "gated_delta_rule",
    "loop", "fused", "tiled", "microkernel", "simulated",
}  # fmt: skip
"""Operations and implementations whose gradients are checked only with --thorough."""


def every_case(test=None, *, slow=()):
    """Test each record on all of its cases. On libraries other than the first one, only on the
    first case, unless --thorough. Operations and implementations named in `slow` are tested only
    with --thorough."""
    if test is None:
        return partial(every_case, slow=slow)
    fixtures = list(inspect.signature(test).parameters)[1:]  # none, or place

    def of_record(record, request):
        place = [request.getfixturevalue(name) for name in fixtures]
        first = request.config.getoption("--array-backend").partition(",")[0]
        thorough = request.config.getoption("--thorough")
        every = thorough or not place or place[0].name == first
        for case in record.cases if every else record.cases[:1]:
            if not thorough and case.settings.get("implementation") in slow:
                continue
            try:
                test((record, case), *place)
            except Exception as error:
                error.add_note(f"in the case {case}")
                raise

    of_record.__doc__ = test.__doc__
    names = {record.operation.__name__: record for record in RECORDS}
    records = [
        pytest.param(record, id=name, marks=[pytest.mark.thorough] * (name in slow))
        for name, record in names.items()
    ]
    of_record = pytest.mark.usefixtures(*fixtures)(of_record) if fixtures else of_record
    return pytest.mark.parametrize("record", records)(of_record)


def several(result):
    return result if isinstance(result, tuple) else (result,)


def hosts(arrays):
    return [None if x is None else backend.to_numpy(x) for x in arrays]
