"""Code in a user's file or package, by name: `file.py:name`, `package.module:name`."""

import sys

import pytest

from idiolect.core.code import explain, load_code
from idiolect.core.errors import InputError, UnknownNameError
from idiolect.core.functions import Functions
from idiolect.core.trust import named_by
from idiolect.core.trust import remember_code as remember


def write(folder, name, *lines):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_may_import_the_files_and_packages_beside_it(tmp_path):
    write(tmp_path, "lies_beside.py", "from package_beside.inner import three", "seven = 4 + three")
    write(tmp_path, "package_beside/__init__.py", "")
    write(tmp_path, "package_beside/inner.py", "from .deeper import three")
    write(tmp_path, "package_beside/deeper.py", "three = 3")
    path = write(tmp_path, "main_a.py", "from lies_beside import seven", "def get(): return seven")
    finders = [*sys.meta_path]
    assert load_code(f"{path}:get", "function")() == 7
    assert sys.meta_path == finders
    assert str(tmp_path) not in sys.path


def test_a_file_beside_that_changed_is_read_anew(tmp_path):
    write(tmp_path, "beside_b.py", "value = 1")
    path = write(tmp_path, "main_b.py", "from beside_b import value")
    assert load_code(f"{path}:value", "number") == 1
    write(tmp_path, "beside_b.py", "value = 2")
    assert load_code(f"{path}:value", "number") == 2


def test_two_files_beside_of_one_name_are_not_mixed_up(tmp_path):
    for folder, value in (("a", 1), ("b", 2)):
        write(tmp_path, f"{folder}/beside_c.py", f"value = {value}")
        write(tmp_path, f"{folder}/main_c.py", "from beside_c import value")
    assert load_code(f"{tmp_path}/a/main_c.py:value", "number") == 1
    with pytest.raises(InputError, match="are both imported as 'beside_c'"):
        load_code(f"{tmp_path}/b/main_c.py:value", "number")


def test_known_code_is_known_with_its_name_and_with_the_files_beside_it(tmp_path):
    write(tmp_path, "beside_d.py", "value = 1")
    path = write(tmp_path, "main_d.py", "from beside_d import value", "other = 2")
    load_code(f"{path}:value", "number")
    remember([f"{path}:value"])
    with named_by(tmp_path):
        assert load_code(f"{path}:value", "number") == 1
        with pytest.raises(InputError, match="--trust"):
            load_code(f"{path}:other", "number")
        write(tmp_path, "beside_d.py", "value = 3")
        with pytest.raises(InputError, match="--trust"):
            load_code(f"{path}:value", "number")


def test_a_module_that_a_folder_names_is_not_imported(tmp_path, monkeypatch):
    write(tmp_path, "package_e/__init__.py", "raise RuntimeError('ran')")
    write(tmp_path, "package_e/inner.py", "value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    with named_by(tmp_path), pytest.raises(InputError, match="--trust"):
        load_code("package_e.inner:value", "number")
    with pytest.raises(InputError, match=r"__init__\.py, line 1: RuntimeError: ran"):
        load_code("package_e.inner:value", "number")


def test_what_is_not_there_is_said(tmp_path):
    path = write(tmp_path, "main_f.py", "def load(): pass")
    with pytest.raises(UnknownNameError, match=r"has no 'laod' that is a data source\. Did you mean load"):
        load_code(f"{path}:laod", "data source")
    with pytest.raises(UnknownNameError, match=r"no module 'no\.such' can be imported here; for a file write"):
        load_code("no.such:load", "data source")
    with pytest.raises(UnknownNameError, match=r"there is no file 'no/where\.py' in "):
        load_code("no/where.py:load", "data source")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nx = y\n", r"broken\.py, line 2: NameError: name 'y' is not defined$"),
        ("def f(:\n    pass\n", r"broken\.py, line 1: SyntaxError"),
        ("import json\n\njson.loads('{')\n", r"broken\.py, line 3: JSONDecodeError: Expecting"),
        ("import no_such_module\n", r"broken\.py, line 1: ModuleNotFoundError: No module named 'no_such_module'$"),
    ],
)
def test_errors_in_a_file_are_one_line_that_names_the_line(tmp_path, text, message):
    path = write(tmp_path, "broken.py", text)
    with pytest.raises(InputError, match=message) as caught:
        load_code(f"{path}:f", "loss")
    assert "\n" not in str(caught.value)


def test_an_error_without_own_code_is_just_said():
    assert explain(ValueError("first\nsecond")) == "ValueError: first"
    assert explain(KeyError()) == "KeyError"


def test_functions_by_name_with_options_and_as_classes(tmp_path):
    path = write(
        tmp_path,
        "functions.py",
        "def power(x, exponent=1): return x ** exponent",
        "class Add:",
        "    def __init__(self, number=0): self.number = number",
        "    def __call__(self, x): return x + self.number",
        "constant = 3",
    )
    functions = Functions("function", {"negate": lambda x: -x}, group="idiolect.nothing")
    assert functions.find("negate")(2) == -2
    assert functions.find(f"{path}:power")(3) == 3
    assert functions.find(f"{path}:power(exponent=2)")(3) == 9
    assert functions.find(f"{path}:Add(number=2)")(3) == 5
    for text, message in (
        (f"{path}:constant", "must be a function or a class"),
        (f"{path}:power(exponnt=2)", "unexpected keyword argument"),
        (f"{path}:power(2)", "name the options of"),
        ("negte", "there is no function 'negte'. Did you mean negate"),
    ):
        with pytest.raises(InputError, match=message):
            functions.find(text)
