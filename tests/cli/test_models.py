"""`idiolect models`: all networks, or one in detail."""

import json
import re

from idiolect.models import models


def test_models_lists_all_with_their_options(call):
    code, out, _ = call("models")
    assert code == 0
    listed = [line.split()[0] for line in out.splitlines() if re.match(r"  \S", line)]
    assert listed == ["file.py:Net", *models]
    assert "(hidden=[200])" in out


def test_a_network_in_detail(call):
    code, out, _ = call("models", "mlp")
    assert code == 0
    assert out.startswith("mlp: ")
    assert "widths of the hidden layers" in out
    assert ">>>" not in out
    assert [each["name"] for each in json.loads(call("models", "--json")[1])] == list(models)


def test_an_unknown_network_is_named_with_those_that_are_known(call):
    code, _, err = call("models", "mlpp")
    assert code == 2
    assert "Did you mean mlp?" in err
