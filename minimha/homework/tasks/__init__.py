"""The tasks of the course, in order. Each chapter has two files: the tasks with their checks, and
their usual mistakes as patches of the solutions, which releases lack."""

from importlib import import_module
from pkgutil import iter_modules

for _name in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_name}")
