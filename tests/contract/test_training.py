"""How clients train where nothing is said."""

from dataclasses import asdict

from idiolect.contract import Training
from idiolect.runs.settings import Config


def test_the_defaults_are_those_of_a_run():
    config, training = Config(), asdict(Training())
    names = {"epochs": "local_epochs"}
    plain = {name: value for name, value in training.items() if name not in ("optimizer", "schedule")}
    assert plain == {name: getattr(config, names.get(name, name)) for name in plain}
    assert Training().optimizer == config.build_optimizer()
