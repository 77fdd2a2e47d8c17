"""The configuration of a run: flat, with ranges and help, the same in YAML, on the command line and in Python.

Methods and optimizers, and PyTorch with them, are imported where they are built, so that the settings can be listed
without them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..core.errors import InputError, UnknownNameError
from ..core.expressions import value
from ..core.files import write_whole
from ..core.options import Options, did_you_mean, make, option, options_of
from ..core.randomness import LARGEST_SEED
from ..core.ranges import parse_ranges
from ..core.registry import describe, override

if TYPE_CHECKING:
    from ..task.optimizers import Optimizer

OWN = "(given in Python)"
"""What a configuration says of a setting that was given as an object."""
SELECTIONS = {
    "weighted": "sample-weighted validation",
    "mean": "validation, plain mean over clients",
    "last10": "sample-weighted validation, mean of ten evaluated rounds",
    "last": "last round",
}
"""The values of `select`, and how summaries and tables name them."""
UNHASHED = ("save_models", "cache_mb", "sample_cache_mb", "sample_cache")
"""Settings that do not change the results."""
LATER = tuple(
    (name, None)
    for name in (
        *("transform", "eval_clients", "presence", "dropout", "stragglers"),
        *("partition_seed", "init_seed", "sampling_seed"),
    )
)
"""Settings that came later, with the value that means what there was before: then the hash is the same."""


@dataclass(frozen=True)
class Config(Options):
    """Everything that determines a run, as text and numbers."""

    method: str = option("fedavg", help="method expression, as in fedprox(mu=0.1) or fedlag(ditto, k=3)")
    data: str = option("digits", help="data source, as in digits; `idiolect data` lists them; or file.py:function")
    partition: str | None = option(
        None, help="how data are dealt to clients; none is natural groups, else dirichlet:0.1; or file.py:function"
    )
    clients: int | None = option(None, min=1, help="number of clients; none is 20, or all natural groups")
    unseen: float | tuple[str, ...] = option(
        0.0, min=0.0, below=1.0, help="share of clients that never train, or their names, as in 'ward 3, ward 7'"
    )
    split: tuple[float, ...] | None = option(
        None,
        min=0.0,
        max=1.0,
        help="train, validation, test shares per client; none is the data's own, else 0.6 0.2 0.2",
    )
    public: str | None = option(
        None, help="data that everybody sees, for methods that need them: a source, or a share such as 0.1"
    )
    model: str | None = option(
        None, help="network, as in mlp(hidden=[64]) or file.py:Net; none is the data source's own"
    )
    loss: str | None = option(
        None, help="loss, or file.py:function; none is cross_entropy for classes, mse for numbers"
    )
    metrics: str | None = option(
        None, help="metrics, the headline first, as in accuracy, file.py:mine; none is what suits"
    )
    transform: str | None = option(
        None,
        help="changes of inputs, in order, as in crop(4), flip, normalize or file.py:function; random ones are for"
        " training samples alone",
    )
    head: str | None = option(None, help="name of the output layer; none finds it")
    initial: str | None = option(None, help="safetensors file of initial weights")
    rounds: int = option(50, min=1, help="communication rounds")
    participation: float = option(1.0, above=0.0, max=1.0, help="share of clients sampled each round")
    presence: Mapping[str, str] | None = option(
        None,
        help="rounds in which clients are there, by name, as in {ward 3: 1-40, ward 7: 21-}; others always are",
    )
    dropout: float | None = option(
        None, min=0.0, below=1.0, help="probability that a participant gets the model and drops out before it trains"
    )
    stragglers: float | None = option(
        None, min=0.0, below=1.0, help="probability that a participant trains, but its upload comes too late"
    )
    local_epochs: int = option(1, min=1, help="passes over a client's training data per round")
    batch_size: int = option(32, min=1, help="samples per local step")
    lr: float = option(0.05, above=0.0, help="learning rate")
    schedule: str = option(
        "constant", help="learning rate over rounds: constant, cosine, exponential(gamma=..), step(at=[..])"
    )
    optimizer: str = option("sgd", help="sgd or adam, with options, as in sgd(momentum=0.9)")
    momentum: float | None = option(None, min=0.0, below=1.0, help="momentum of sgd")
    weight_decay: float | None = option(None, min=0.0, help="L2 penalty")
    clip: float | None = option(None, above=0.0, help="largest gradient norm")
    optimizer_state: str = option(
        "reset", choices=("reset", "keep"), help="momentum and moments of a client: new in every round, or kept"
    )
    weighting: str = option("samples", choices=("samples", "uniform"), help="aggregation weights of clients")
    norm_stats: str | None = option(
        None,
        choices=("average", "local", "recompute"),
        help="running statistics of normalisation; none is the method's",
    )
    norm_affine: str = option("shared", choices=("shared", "local"), help="scale and shift of normalisation layers")
    eval_every: int = option(1, min=1, help="rounds between evaluations; the last round is always evaluated")
    eval_clients: int | None = option(
        None, min=1, help="clients that are evaluated, drawn once by the seed; none is all of them"
    )
    select: str = option(
        "weighted",
        choices=tuple(SELECTIONS),
        help="how the round is selected: by validation, of one round or of ten on end, or the last one",
    )
    after_local: bool = option(False, help="also evaluate participants right after local training")
    eval_global: bool = option(False, help="also evaluate the shared model itself, where there is one")
    seed: int = option(
        0, min=0, max=LARGEST_SEED, help="determines partition, initial weights, sampling and batch order"
    )
    partition_seed: int | None = option(
        None, min=0, max=LARGEST_SEED, help="determines partition, splits and unseen clients; none is seed"
    )
    init_seed: int | None = option(None, min=0, max=LARGEST_SEED, help="determines initial weights; none is seed")
    sampling_seed: int | None = option(
        None, min=0, max=LARGEST_SEED, help="determines who takes part in a round, and who fails; none is seed"
    )
    engine: str = option("auto", help="how clients' work is carried out: auto, loop, workers, vector or ray")
    precision: str = option(
        "fp32", choices=("fp32", "bf16"), help="number format of the networks; parameters and sums stay fp32"
    )
    cache_mb: int = option(256, min=0, help="memory for the clients' states that are on disk, in megabytes")
    sample_cache_mb: int = option(
        256, min=0, help="room for decoded samples of data that are read when they are needed, in megabytes"
    )
    sample_cache: str | None = option(None, help="folder for these samples, which later runs use; none is in memory")
    device: str = option("cpu", help="where tensors live, as in cpu or cuda")
    save_models: bool = option(False, help="write every client's personal model into the run folder")

    @property
    def hash(self) -> str:
        """A short hash of everything that changes the results."""
        hashed = {k: v for k, v in self.as_dict().items() if k not in UNHASHED and (k, v) not in LATER}
        return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they are written to YAML."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    def seed_of(self, what: str) -> int:
        """The seed of `partition`, `init` or `sampling`."""
        own: int | None = getattr(self, f"{what}_seed")
        return self.seed if own is None else own

    def build_optimizer(self) -> Optimizer:
        """The optimizer, with `momentum`, `weight_decay` and `clip` where they are given."""
        from ..task.optimizers import optimizers

        built = optimizers.build(self.optimizer)
        for name in ("momentum", "weight_decay", "clip"):
            if (setting := getattr(self, name)) is not None:
                built = override(built, name, str(setting))
        return built


def mark_objects(config: Config, names: Iterable[str]) -> Config:
    """The configuration with a mark at settings that were given as objects."""
    marks: dict[str, Any] = dict.fromkeys(names, OWN)
    return dataclasses.replace(config, **marks)


def configure(values: Mapping[str, Any] | None = None, overrides: list[str] | None = None) -> Config:
    """A checked configuration from plain values and `key=value` overrides (`method.mu=0.1` reaches into the method).
    The method may also be given as an object.

    >>> configure({"method": "fedprox", "rounds": 3}, ["method.mu=0.5"]).method
    'fedprox(mu=0.5)'
    """
    from ..contract import Method, methods
    from ..engines import engines
    from ..task.schedules import schedules

    values, deep = dict(values or {}), []
    for text in overrides or []:
        key, equals, written = text.partition("=")
        key = key.strip()
        if not equals:
            raise InputError(f"the override {text!r} has no '='; write key=value, as in -o method.mu=0.1")
        if key.startswith("method."):
            deep.append((key.removeprefix("method."), written.strip()))
        else:
            values[key] = written if options_of(Config).get(key) and key in _TEXT else value(written)
    given_method = values.get("method")
    if isinstance(given_method, Method):
        values["method"] = describe(given_method)
    config = read_values(values)
    method = given_method if isinstance(given_method, Method) else methods.build(config.method)
    for path, written in deep:
        method = override(method, path, written)
    schedules.build(config.schedule)
    engines.build(config.engine)
    config.build_optimizer()
    return dataclasses.replace(config, method=describe(method))


def read_values(values: Mapping[str, Any]) -> Config:
    """A configuration from plain values, of which nothing is built."""
    for name in values:
        if name not in options_of(Config):
            raise UnknownNameError(
                f"there is no setting {name!r}.{did_you_mean(str(name), options_of(Config))} "
                f"Settings: {', '.join(options_of(Config))}; options of the method are written method.NAME."
            )
    if "unseen" in values:
        values = {**values, "unseen": read_unseen(values["unseen"])}
    if values.get("presence") is not None:
        values = {**values, "presence": read_presence(values["presence"])}
    config: Config = make(Config, values)
    if (config.dropout or 0) + (config.stragglers or 0) > 1:
        raise InputError(
            f"dropout={config.dropout} and stragglers={config.stragglers} are more than 1 together; no client may fail"
            " in both ways, so let them sum to 1 at most"
        )
    if config.split and (abs(sum(config.split) - 1) > 1e-6 or len(config.split) != 3 or config.split[0] <= 0):
        raise InputError(f"split={list(config.split)} must be three shares (train, validation, test) that sum to 1")
    return config


def read_unseen(written: Any) -> Any:
    """A share as a number, names as a list; in a text these are split at commas.

    >>> read_unseen("0.2"), read_unseen("ward 3, ward 7"), read_unseen([3, "ü"]), read_unseen("['a, b']")
    (0.2, ['ward 3', 'ward 7'], ['3', 'ü'], ['a, b'])
    """
    if isinstance(written, str):
        text = written.strip()
        known = value(text) if text.startswith("[") else text
        try:
            return float(known) if isinstance(known, str) else [str(name) for name in known]
        except ValueError:
            return [name.strip() for name in text.split(",") if name.strip()]
    return [str(name) for name in written] if isinstance(written, list | tuple) else written


def read_presence(written: Any) -> dict[str, str]:
    """When clients are there, by name, from a mapping or a text like one.

    >>> read_presence("{ward 3: 1-40, ward 7: [1-10, 31-]}")
    {'ward 3': '1-40', 'ward 7': '1-10, 31-'}
    """
    known = value(written) if isinstance(written, str) else written
    if not isinstance(known, Mapping) or not known:
        raise InputError(
            f"presence={written!r} is not allowed; give rounds by client, as in {{ward 3: 1-40, ward 7: 21-}}"
        )
    rounds = {
        str(name): ", ".join(map(str, at)) if isinstance(at, list | tuple) else str(at) for name, at in known.items()
    }
    for name, at in rounds.items():
        parse_ranges(at, f"presence of {name!r}")
    return rounds


_TEXT = {name for name, info in options_of(Config).items() if str in info.types}


class UniqueNames(yaml.SafeLoader):
    """Reads plain values, and refuses a name that is given twice, of which the last would hold in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The values by name."""
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise yaml.YAMLError(f"{twice!r} is given twice; keep one of them")
        return super().construct_mapping(node, deep)


def read_config(path: Path) -> dict[str, Any]:
    """The plain values of a YAML file."""
    try:
        values = yaml.load(path.read_text(), UniqueNames)
    except OSError as error:
        raise InputError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"the configuration {path} is not YAML: {describe_problem(error)}") from error
    if not isinstance(values, dict):
        raise InputError(f"the configuration {path} must be a list of 'name: value' lines, such as 'rounds: 50'")
    return values


def describe_problem(error: Exception) -> str:
    """What is wrong with a text that is not YAML, and where, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    return str(error).partition("\n")[0]


def write_config(config: Config, path: Path) -> None:
    """Write the resolved configuration as YAML."""
    text = yaml.safe_dump(config.as_dict(), sort_keys=False)
    write_whole(path, lambda part: part.write_text(text))
