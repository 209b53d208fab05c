"""`minimha homework export`: a student's functions as a package that tests itself and trains a
transformer. `templates` contains the files that are the same in every such package."""

from .export import add_arguments, export_package

__all__ = ["add_arguments", "export_package"]
