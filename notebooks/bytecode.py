"""Add bytecode to wheels and to Pyodide's standard library, a zip file. Runs in Pyodide.

A browser keeps no bytecode: without this, Python would compile every module on every visit, which
takes longer than all the rest of its start.
"""

import compileall
import shutil
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode


def add_bytecode(archive: Path) -> None:
    """Compile all modules of an archive, for this Python."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(archive, folder, "zip")
        compileall.compile_dir(
            folder,
            quiet=2,
            stripdir=folder,
            legacy=archive.suffix == ".zip",  # where an import from a zip file looks
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
        new = shutil.make_archive(f"{archive}.new", "zip", folder)
    Path(new).replace(archive)


if __name__ == "__main__":
    for archive in Path("/folder").iterdir():
        if archive.suffix in (".whl", ".zip"):
            add_bytecode(archive)
