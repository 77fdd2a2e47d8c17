"""One paper, one file. Importing this package fills the registry; a new file needs no other change."""

import sys
from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    try:
        import_module(f"{__name__}.{_module.name}")
    except (ImportError, TypeError, AttributeError) as _error:
        print("NOT PORTED", _module.name, _error, file=sys.stderr)
