"""`python -m idiolect` is the command line."""

import os
import sys

if __name__ == "__main__":
    if sys.path[0] in ("", os.getcwd()):  # where a library's namesake could lie, which `idiolect` would not see either
        del sys.path[0]
    from idiolect.cli import main

    main()
