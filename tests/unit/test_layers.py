"""Who may import whom: the table of layers, read from the source with `ast`."""

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import diversed
from diversed import config

PACKAGE = Path(diversed.__file__).parent
ROOT = "diversed"

# package or module -> (layer, third-party imports beside those of core)
LAYERS = {
    "core": (0, set()),
    "models": (1, {"transformers", "safetensors", "huggingface_hub"}),
    "tasks": (1, {"datasets", "evaluate", "rouge_score", "sacrebleu", "reasoning_gym"}),
    "objective": (1, set()),
    "theory": (1, {"numpy", "scipy"}),
    "records": (1, {"pandas", "pyarrow"}),
    "generation": (2, {"transformers", "tqdm"}),
    "prompting": (2, set()),
    "evaluation": (2, {"numpy", "pandas"}),  # arrays and tables come from theory and records
    "figures": (2, {"matplotlib", "numpy", "pandas"}),
    "report": (2, {"jinja2", "pandas"}),
    "controls": (3, set()),
    "training": (3, {"lightning", "peft", "datasets"}),
    "tracking": (3, {"wandb", "lightning"}),
    "config": (4, {"hydra", "omegaconf"}),
    "app": (5, None),  # None: anything but wandb
    "collect": (5, None),
    "grid": (5, None),
    "sweep": (5, None),
    "notebooks": (5, None),
    "demo": (5, None),
    "evidence": (5, None),
    "publish": (5, None),
    "tiny_pair": (5, None),
}
ORDER = list(LAYERS)
NARROW = {"figures": {"records", "theory"}, "tracking": {"records"}, "objective": {"core"}}
"""Packages that may import fewer of the project's own than their layer allows."""


def unit_of(name):
    """Return the table's entry of a module such as `diversed.core.loop`; "" for the package."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path.read_text()


def imports_of(source):
    """Return the absolute names of everything that a module imports, wherever it does so."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                names.append("<relative>")
            elif node.module == ROOT:
                names += [f"{ROOT}.{alias.name}" for alias in node.names]
            else:
                names.append(node.module)
    return names


def faults(module, source):
    """Return what a module imports against the table, as readable lines."""
    unit = unit_of(module)
    found = []
    for name in imports_of(source):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names:
            continue
        if top == ROOT:
            other = unit_of(name)
            if not is_allowed_inside(unit, other):
                found.append(f"{module} imports {name}")
        elif not is_allowed_outside(unit, top):
            found.append(f"{module} imports {name}")
    return found


def is_allowed_inside(unit, other):
    if unit in ("", other):
        return other in ("core", "", unit, "generation")
    if other not in LAYERS:
        return False
    if unit in NARROW:
        return other in NARROW[unit]
    layer, other_layer = LAYERS[unit][0], LAYERS[other][0]
    return other_layer < layer or (other_layer == layer and ORDER.index(other) < ORDER.index(unit))


def is_allowed_outside(unit, top):
    if unit == "":
        return False
    allowed = LAYERS[unit][1]
    if allowed is None:
        return top != "wandb"
    return top == "torch" or top in allowed


MODULES = dict(modules())


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_table(module):
    assert unit_of(module) in {"", *LAYERS}, "give the new module a line in the table"
    assert faults(module, MODULES[module]) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("diversed.core.loop", "import numpy"),
        ("diversed.core.loop", "from diversed.models.hf import HFLanguageModel"),
        ("diversed.core.loop", "def late():\n    import transformers"),
        ("diversed.objective.reinforce", "from diversed.records.schema import ROW_COLUMNS"),
        ("diversed.objective.reinforce", "import pandas"),
        ("diversed.models.hf", "from diversed.tasks.base import Task"),
        ("diversed.generation", "from diversed.evaluation.runner import evaluate_task"),
        ("diversed.figures.plots", "from diversed.evaluation.summary import summarise"),
        ("diversed.training.module", "import wandb"),
        ("diversed.training.module", "from diversed.app import train"),
        ("diversed.app", "import wandb"),
        ("diversed.app", "from diversed.demo import main"),
        ("diversed", "import torch"),
        ("diversed.core.loop", "from . import noise"),
        ("diversed.training.data", "from diversed import app"),
    ],
)
def test_the_check_rejects_what_the_table_forbids(module, source):
    assert faults(module, source)


def test_the_check_sees_every_module():
    assert {"diversed", "diversed.core.loop", "diversed.app"} <= MODULES.keys()
    assert {unit_of(module) for module in MODULES} - {""} <= LAYERS.keys()


def test_core_is_light():
    code = (
        "import sys, diversed.core, diversed.core.loop, diversed.core.verifiers, "
        "diversed.core.counts, diversed.core.recorder\n"
        "heavy = {'lightning', 'hydra', 'wandb', 'transformers', 'pandas', 'datasets'}\n"
        "sys.stdout.write(' '.join(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert done.stdout == ""


def schema_fields():
    for name, value in vars(config).items():
        if dataclasses.is_dataclass(value) and value.__module__ == config.__name__:
            for field in dataclasses.fields(value):
                yield name, field.name


@pytest.mark.parametrize(("schema", "field"), list(schema_fields()))
def test_no_key_of_a_schema_is_dead(schema, field):
    trees = [ast.parse(source) for name, source in MODULES.items() if unit_of(name) == "app"]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    reads = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert field in reads, f"{schema}.{field} is never read"


def test_schemas_are_found():
    assert ("ObjectiveConfig", "clip_ratio") in list(schema_fields())
