"""One paper, one file; a large one is a folder. Importing this package fills the registry; a new file needs no other
change."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
