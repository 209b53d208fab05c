"""A package of one's own: a student's functions as a package that tests itself and trains a
transformer. The files that all such packages have are in `templates`."""

from .export import add_arguments, export_package

__all__ = ["add_arguments", "export_package"]
