"""A client's personal model, loaded from the client's folder."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path

import torch

from ..core.errors import InputError, RunFolderError
from ..core.trust import named_by
from ..engines.client_evaluation import adapt_model
from ..runs.export import Personal, about, scores_at
from ..runs.settings import SELECTIONS
from ..runs.store import Store
from .folders import MODEL_FILE
from .project import Project
from .settings import read_settings


def load_personal_model(
    folder: Path, project: Project | None = None, last: bool = False, trust: bool = False
) -> Personal:
    """Load a client's model of the selected round, or of the last one that it was evaluated in.

    Args:
        folder: the client's folder.
        project: the user's functions; not needed where data and model come from the settings by name.
        last: take the last round rather than the selected one.
        trust: run code that the folder's settings name, though no run on this machine has used it.
    """
    store = Store(folder / MODEL_FILE, write=False)
    try:
        if (newest := store.fact("last")) is None:
            raise RunFolderError(f"{folder} holds no model yet; a client has one after its first evaluation")
        if store.fact("own") and project is None:
            raise InputError("this federation has its own data or model; give the folder of its app: --app my-app")
        index, selected = int(store.fact("client")), int(store.fact("selected"))
        at = newest if last else selected
        if (personal := store.clients([index], at)[index]) is None or at > newest:
            at, personal = newest, store.clients([index])[index]
        rows, unseen, settings = store.rows(), bool(store.fact("unseen")), store.fact("settings")
        agreed = str(store.fact("data", ""))
    finally:
        store.close()
    assert personal is not None
    project = project or Project()
    with named_by(folder, trust):
        config, deployment = read_settings(settings)
        plan = project.build_plan(config, project.load_federation(config, deployment, index, agreed))
    ctx = plan.context(index, at, newcomer=False)
    with torch.random.fork_rng(devices=[]):
        personal = adapt_model(plan, ctx, personal, unseen) or personal
    which = f"selected: {SELECTIONS[config.select]}" if at == selected else "the newest that this client has"
    facts = about(plan, config.hash, index, at, newest, which)
    return Personal(plan, index, personal, facts, scores_at(rows, index, at))


def load_project(app: Path) -> Project:
    """Load the project of a Flower app from the file that its pyproject.toml names.

    Args:
        app: the app's folder.
    """
    try:
        pyproject = tomllib.loads((app / "pyproject.toml").read_text())
        name = pyproject["tool"]["flwr"]["app"]["components"]["clientapp"].partition(":")[0]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{app} is not a Flower app: its pyproject.toml names no clientapp") from error
    path = app / f"{name.replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InputError(f"the app's file {path} is missing")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(app))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(app))
    for value in vars(module).values():
        if isinstance(value, Project):
            return value
    raise InputError(f"{path} defines no Project; add one, as in project = Project(load_data, build_model)")
