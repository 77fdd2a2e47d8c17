"""What named code imports: served as it was read, checked before it runs, whenever and by whomever it is imported."""

import importlib
import importlib.util
import os
import py_compile
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from idiolect.core import code, installed
from idiolect.core.code import load_code
from idiolect.core.errors import UntrustedCodeError
from idiolect.core.installed import is_installed
from idiolect.core.trust import named_by, remember_code

EVIL = "open('ran', 'w'); value = 2"
OWN_FOLDER = "import sys; from pathlib import Path; sys.path.insert(0, str(Path(__file__).parent))"


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    """A folder to work in; what a test imports, finds and puts on the path does not stay."""
    (tmp_path / "received").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IDIOLECT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield
    forget()


def forget():
    """What a new process does not have."""
    code._modules.clear()
    for name in [name for name in sys.modules if name.startswith(("zz_", "main in"))]:
        del sys.modules[name]
    importlib.invalidate_caches()


def write(name, *lines):
    path = Path("received") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path.resolve()


def load(attribute="value"):
    return load_code("received/main.py:" + attribute, "value")


def receive(attribute="value"):
    """Load the code as another process does which is given a folder of settings that name it."""
    forget()
    with named_by("received"):
        return load(attribute)


def know(*lines, attribute="value"):
    """Name the code, so that it is known from then on; then forget it as if the process had ended."""
    write("main.py", *lines)
    path, finders = [*sys.path], [*sys.meta_path]
    result = load(attribute)
    remember_code([f"received/main.py:{attribute}"])
    sys.path[:], sys.meta_path[:] = path, finders
    forget()
    return result


def compile_over(source, target):
    Path("evil.py").write_text(source)
    py_compile.compile("evil.py", str(target), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def test_a_folder_that_is_only_called_like_an_installed_one_is_none():
    package = Path(installed.__file__).parents[1]
    for place in (package, Path(yaml.__file__).parent, Path(os.__file__).parent):
        assert is_installed(place / "module.py")
    for place in (f"{package}_x", package / ".." / f"{package.name}_x", f"{Path(os.__file__).parent}_x"):
        assert not is_installed(Path(place) / "module.py")


def test_a_module_in_a_folder_beside_the_installed_ones_is_checked(monkeypatch):
    """`lib_x` begins like `lib`; what lies in `lib` itself is not looked at."""
    monkeypatch.setattr(installed, "PLACES", (Path("received/lib").absolute(),))
    head = "import sys; from pathlib import Path; here = Path(__file__).parent"
    know(head, "sys.path[:0] = [str(here / 'lib'), str(here / 'lib_x')]",
         "try: import zz_a", "except ImportError: pass", "value = 1")  # fmt: skip
    write("lib/zz_a.py", EVIL)
    assert receive() == 1
    assert Path("ran").exists()
    Path("ran").unlink()
    os.rename("received/lib", "received/lib_x")
    with pytest.raises(UntrustedCodeError, match="which imports"):
        receive()
    assert not Path("ran").exists()


TRY = "try: import zz_a\nexcept ImportError: pass\nvalue = 1"


def put_module():
    write("zz_a.py", EVIL)


def put_package():
    write("zz_a/__init__.py", EVIL)


def put_library():
    write("zz_a.so", "not even a library")
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    os.rename("received/zz_a.so", f"received/zz_a{suffix}")


def put_compiled():
    compile_over(EVIL, "received/zz_a.pyc")


def put_link():
    Path("elsewhere.py").write_text(EVIL)
    Path("received/zz_a.py").symlink_to(Path("elsewhere.py").resolve())


def put_path_file():
    write("zz.pth", "hidden")
    write("hidden/zz_a.py", EVIL)


ATTACKS = {
    "a module beside": ([TRY], put_module),
    "a module on the path": ([OWN_FOLDER, TRY], put_module),
    "a package on the path": ([OWN_FOLDER, TRY], put_package),
    "an extension on the path": ([OWN_FOLDER, TRY], put_library),
    "compiled code on the path": ([OWN_FOLDER, TRY], put_compiled),
    "a link on the path": ([OWN_FOLDER, TRY], put_link),
    "by importlib": ([OWN_FOLDER, "import importlib", TRY.replace("import zz_a", "importlib.import_module('zz_a')")],
                     put_module),
    "by a name": ([OWN_FOLDER, TRY.replace("import zz_a", "__import__('zz' + '_a')")], put_module),
    "by a path file": (["import site, os; site.addsitedir(os.path.dirname(__file__))", TRY], put_path_file),
    "by a library": ([OWN_FOLDER, "import pkgutil", TRY.replace("import zz_a", "pkgutil.resolve_name('zz_a')")],
                     put_module),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_known_code_finds_in_a_received_folder_does_not_run(attack):
    lines, put = ATTACKS[attack]
    know(*lines)
    put()
    with pytest.raises(UntrustedCodeError, match="--trust"):
        receive()
    assert not Path("ran").exists()


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack != "a module beside"])
def test_nor_does_it_in_the_middle_of_a_run(attack):
    """The import stands in a function, which is called when nobody thinks of the folder any more."""
    lines, put = ATTACKS[attack]
    know(*lines[:-1], "def value():", *("    " + line for line in lines[-1].splitlines()), "    return value")
    put()
    with pytest.raises(UntrustedCodeError, match="--trust"):
        receive()()
    assert not Path("ran").exists()


def test_a_folder_that_known_code_puts_on_the_path_gives_nothing_to_others():
    """Not to libraries that are loaded later, such as one for figures."""
    know(OWN_FOLDER, "value = 1")
    put_module()
    assert receive() == 1
    with pytest.raises(UntrustedCodeError, match="zz_a"):
        importlib.import_module("zz_a")
    assert not Path("ran").exists()


def test_others_import_what_is_theirs(tmp_path):
    """Neither trusted nor known, but not in a folder that came with the code."""
    know(OWN_FOLDER, "value = 1")
    receive()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "zz_mine.py").write_text("value = 5")
    sys.path.insert(0, str(tmp_path / "mine"))
    assert importlib.import_module("zz_mine").value == 5


def test_a_file_beside_may_be_imported_later():
    """As it could be by a script; in a received folder only with the content that is known."""
    write("zz_a.py", "value = 3")
    know("def value():", "    import zz_a", "    return zz_a.value")
    assert receive()() == 3
    function = receive()
    write("zz_a.py", EVIL)
    assert function() == 3
    sys.modules.pop("zz_a")
    with pytest.raises(UntrustedCodeError):
        receive()
    assert not Path("ran").exists()


def test_later_submodules_are_those_that_were_checked():
    """Compiled code that Python would take without a look at the text, and text that was changed since."""
    write("zz_a/__init__.py", "def get():", "    from . import inner", "    return inner.value")
    inner = write("zz_a/inner.py", "value = 4")
    know("import zz_a", "value = zz_a.get")
    compile_over(EVIL, importlib.util.cache_from_source(str(inner)))
    get = receive()
    write("zz_a/inner.py", EVIL)
    assert get() == 4
    assert not Path("ran").exists()


def test_what_was_not_gathered_of_a_package_is_checked_when_it_is_imported():
    """A folder that is a link, as a package and without `__init__.py`."""
    write("zz_a/__init__.py", "")
    know("import zz_a, importlib", "def value(): return importlib.import_module('zz_a.linked.inner').value")
    Path("elsewhere").mkdir()
    Path("elsewhere/inner.py").write_text(EVIL)
    Path("received/zz_a/linked").symlink_to(Path("elsewhere").resolve())
    with pytest.raises(UntrustedCodeError):
        receive()()
    assert not Path("ran").exists()


def test_an_archive_on_the_path_is_checked():
    know("import sys; sys.path.insert(0, __file__[:-len('main.py')] + 'lib.zip')", TRY)
    with zipfile.ZipFile("received/lib.zip", "w") as archive:
        archive.writestr("zz_a.py", EVIL)
    with pytest.raises(UntrustedCodeError, match=r"lib\.zip"):
        receive()
    assert not Path("ran").exists()


def test_a_file_that_changes_while_code_is_loaded_runs_as_it_was_checked():
    write("zz_a.py", "value = 3")
    change = f"open(__file__[:-len('main.py')] + 'zz_a.py', 'w').write({EVIL!r})"
    know("import zz_a", "value = zz_a.value")
    write("main.py", change, "import zz_a", "value = zz_a.value")
    assert load() == 3
    assert not Path("ran").exists()


def test_what_imports_an_edited_file_is_imported_anew():
    write("zz_b.py", "value = 1")
    write("zz_a.py", "from zz_b import value")
    write("main.py", "from zz_a import value")
    assert load() == 1
    write("zz_b.py", "value = 2")
    assert load() == 2


def test_a_builtin_or_installed_module_goes_before_a_file_beside():
    for name in ("time", "json", "yaml"):
        write(f"{name}.py", EVIL)
    write("main.py", "import time, json, yaml", "value = 1")
    assert load() == 1
    assert not Path("ran").exists()


def test_code_in_a_file_is_compiled_as_python_does():
    """Annotations are what they say, not texts."""
    write("zz_a.py", "def one(x: int): pass")
    write("main.py", "import zz_a", "def two(x: int): pass", "value = [zz_a.one.__annotations__, two.__annotations__]")
    assert load() == [{"x": int}, {"x": int}]


def test_finders_stay_only_where_something_may_still_be_imported():
    before = [*sys.meta_path]
    write("zz_a.py", "")
    write("main.py", "import zz_a", "value = 1")
    load()
    assert sys.meta_path == before
    write("main.py", "value = 1")
    for _ in range(3):
        load()
        remember_code(["received/main.py:value"])
        receive()
    assert len(sys.meta_path) == len(before) + 1
