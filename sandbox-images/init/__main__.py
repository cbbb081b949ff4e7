# ruff: noqa: INP001 - a folder that Python runs, not a package
"""Runs init: `python3 -I -S /opt/skilljail/init/__main__.py [WORK]`."""

import sys

# Run as a folder, Python puts it on the path itself. Run as `…/init/__main__.py`, which spares Python some
# milliseconds of looking for this file, nothing does under -I.
_FOLDER = __file__.rpartition("/")[0] or "."
if _FOLDER not in sys.path:
    sys.path.insert(0, _FOLDER)

from skilljail_init.main import main  # noqa: E402 - the path comes first

main(sys.argv[1:])
