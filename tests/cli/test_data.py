"""`idiolect data`: all sources, and what fetching says."""

import json
import re
from pathlib import Path

from idiolect.data.sources import sources


def test_data_lists_all(call):
    code, out, _ = call("data")
    assert code == 0
    listed = re.findall(r"^  (\S+)", out, re.MULTILINE)
    assert sorted(listed) == sorted(["file.py:function", *sources])
    own, here, fetched = (out.index(head) for head in ("own data", "on this machine", "to be fetched"))
    assert own < out.index("  csv ") < here < out.index("  digits ") < fetched < out.index("  mnist ")
    assert "CC BY 4.0" in call("data", "digits")[1]
    assert "$IDIOLECT_DATA/mnist" in call("data", "mnist")[1]
    held = {each["name"]: each for each in json.loads(call("data", "--json")[1])}
    assert (held["digits"]["here"], held["mnist"]["here"]) == (True, False)
    assert "samples" in call("data", "mnist")[1]


def test_fetch_says_what_can_be_fetched_and_why_not(call, folder):
    code, _, err = call("data", "fetch")
    assert (code, "mnist" in err) == (2, True)
    code, _, err = call("data", "fetch", "mnist")
    assert code == 2
    assert "IDIOLECT_DATA is not set" in err
    code, _, err = call("data", "fetch", "digits", "--into", "x")
    assert code == 2
    assert "cannot be fetched" in err
    assert not Path("x").exists()
    code, _, err = call("data", "mnist", "digits")
    assert code == 2
    assert "idiolect data fetch NAME" in err
