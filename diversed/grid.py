"""A W&B sweep file as the grid of points that Hydra can run.

Only what both read alike is taken: `method: grid` over lists of values. The rest is refused by
name, so that no agent of W&B and no multirun of Hydra ever run different points of one file.
"""

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf

from diversed.config import InputError

ARGUMENTS_MACRO = "${args_no_hyphens}"
MAX_NAME_BYTES = 255

_READ_KEYS = ("program", "method", "parameters", "command")
_IGNORED_KEYS = ("metric", "name", "description", "project", "entity")  # W&B's alone
_REFUSED_KEYS = {
    "early_terminate": "it stops runs by their curves",
    "run_cap": "it ends a grid early",
}
_REFUSED_PARAMETERS = {
    "parameters": "nested keys reach the script as one Python dict; write them with dots",
    **dict.fromkeys(("min", "max", "mu", "sigma", "q"), "a distribution has no grid; list values"),
    "probabilities": "a grid has no probabilities",
}
_LISTED_DISTRIBUTIONS = ("categorical", "constant")
_OWN_SETTINGS = ("hydra.sweep.dir", "hydra.sweep.subdir", "hydra.mode", "hydra.run.dir")


@dataclass(frozen=True)
class Point:
    """One run of a grid.

    Attributes:
        values: Override key -> value, as Hydra writes it.
        name: Of the run's folder below that of the sweep.
    """

    values: Mapping[str, str]
    name: str

    @property
    def overrides(self) -> tuple[str, ...]:
        """The values as arguments of the script."""
        return tuple(f"{key}={value}" for key, value in self.values.items())


@dataclass(frozen=True)
class Grid:
    """What a sweep file and the command line ask for.

    Attributes:
        program: File name of the script.
        values: Override key -> its values, in the order of the file.
        named: Keys that the folder of a point names: those with a list in the file, and those with
            several values on the command line.
        launch: Overrides of Hydra's own settings, such as the launcher.
    """

    program: str
    values: Mapping[str, tuple[str, ...]]
    named: frozenset[str]
    launch: tuple[str, ...] = ()

    ITEM_SEPARATOR: ClassVar[str] = "_"
    VALUE_SEPARATOR: ClassVar[str] = "-"

    @property
    def config_name(self) -> str:
        """Name of the script's config."""
        return Path(self.program).stem

    def points(self) -> list[Point]:
        """Return every point, the last key changing fastest.

        Raises:
            InputError: Two points have one folder, or a value makes no name of a folder.
        """
        points: dict[str, Point] = {}
        for choice in itertools.product(*self.values.values()):
            values = dict(zip(self.values, choice, strict=True))
            point = Point(values, self._folder_name(values))
            if point.name in points:
                raise InputError(f"the grid has the point {point.name} twice")
            points[point.name] = point
        return list(points.values())

    def _folder_name(self, values: Mapping[str, str]) -> str:
        """Return what Hydra's `override_dirname` makes of the named keys."""
        lines = sorted(f"{key}={values[key]}" for key in values if key in self.named)
        name = self.ITEM_SEPARATOR.join(lines).replace("=", self.VALUE_SEPARATOR) or "point"
        parts = Path(name).parts
        if ".." in parts or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
            raise InputError(f"{name}: no folder can have this name; shorten the values")
        return name


def read_grid(path: Path, overrides: Sequence[str], program_folder: Path) -> Grid:
    """Return the grid of a sweep file.

    Args:
        path: The file.
        overrides: Arguments in Hydra's grammar; a key takes the place of the file's, and may have
            several values.
        program_folder: Where the scripts are, beside `conf`.

    Raises:
        InputError: The file cannot be read, has an unknown key, or asks for something other than a
            grid; or an argument is none of Hydra's.
    """
    sweep = _read(path)
    program = _program(path, sweep, program_folder)
    values: dict[str, tuple[str, ...]] = {}
    named = set()
    for key, entry in sweep["parameters"].items():
        options = _options(f"{path}: parameters.{key}", entry)
        values[key] = tuple(_as_hydra_reads(f"{path}: parameters.{key}", key, o) for o in options)
        if "values" in entry:
            named.add(key)
    launch = []
    for override in _parse(overrides):
        if override.is_hydra_override():
            if override.key_or_group in _OWN_SETTINGS:
                raise InputError(f"{override.input_line}: the sweep sets it; use --output")
            launch.append(str(override.input_line))
            continue
        key = _key_in(values, override)
        values[key] = _texts(override)
        if len(values[key]) > 1:
            named.add(key)
    return Grid(program, values, frozenset(named), tuple(launch))


def _read(path: Path) -> dict[str, Any]:
    """Return a sweep file's content, its keys checked."""
    try:
        sweep: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except Exception as error:  # of YAML and OmegaConf, which have no common class
        raise InputError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(sweep, dict):
        raise InputError(f"{path}: a sweep file is a mapping with program, method, parameters")
    _check_keys(path, sweep, (*_READ_KEYS, *_IGNORED_KEYS), _REFUSED_KEYS)
    for key in ("program", "method", "parameters"):
        if key not in sweep:
            raise InputError(f"{path}: {key} is missing")
    if sweep["method"] != "grid":
        raise InputError(
            f"{path}: method={sweep['method']}: only grid can be expanded; run it with wandb agent"
        )
    if not isinstance(sweep["parameters"], dict) or not sweep["parameters"]:
        raise InputError(f"{path}: parameters must be a mapping of key: {{values: [...]}}")
    command = sweep.get("command")
    if not isinstance(command, list) or ARGUMENTS_MACRO not in command:
        raise InputError(f"{path}: command must hold {ARGUMENTS_MACRO}: Hydra takes key=value")
    return {str(key): value for key, value in sweep.items()}


def _program(path: Path, sweep: Mapping[str, Any], folder: Path) -> str:
    """Return the script's name; InputError unless it is one that has a config."""
    scripts = sorted(
        f"{config.stem}.py"
        for config in (folder / "conf").glob("*.yaml")
        if (folder / f"{config.stem}.py").is_file()
    )
    program = str(sweep["program"])
    if program not in scripts:
        raise InputError(f"{path}: program={program}: must be one of {', '.join(scripts)}")
    return program


def _options(where: str, entry: Any) -> list[Any]:
    """Return the values that an entry of `parameters` lists."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: must be {{value: ...}} or {{values: [...]}}")
    _check_keys(where, entry, ("value", "values", "distribution"), _REFUSED_PARAMETERS)
    distribution = entry.get("distribution", _LISTED_DISTRIBUTIONS[0])
    if distribution not in _LISTED_DISTRIBUTIONS:
        raise InputError(f"{where}: distribution={distribution} has no grid; list values")
    if ("value" in entry) == ("values" in entry):
        raise InputError(f"{where}: give value or values")
    options = entry["values"] if "values" in entry else [entry["value"]]
    if not isinstance(options, list) or not options:
        raise InputError(f"{where}: values must be a list with something in it")
    return options


def _check_keys(
    where: object, found: Iterable[Any], known: Sequence[str], refused: Mapping[str, str]
) -> None:
    for key in map(str, found):
        if key in refused:
            raise InputError(f"{where}: {key} cannot be expanded: {refused[key]}")
        if key not in known:
            close = difflib.get_close_matches(key, (*known, *refused), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
            raise InputError(f"{where}: unknown key {key}; {hint}")


def _as_hydra_reads(where: str, key: str, value: Any) -> str:
    """Return a value of the file as Hydra reads the argument that W&B would make of it."""
    if value is None:
        raise InputError(f"{where}: null reaches the script as the text None; leave the key out")
    try:
        (override,) = OverridesParser.create().parse_overrides([f"{key}={value}"])
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{where}: Hydra cannot read {key}={value}: {reason}") from error
    if override.is_sweep_override():
        raise InputError(f"{where}: Hydra reads {value} as several values; quote it as '\"...\"'")
    return _texts(override)[0]


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise InputError(" ".join(str(error).split())) from error


def _texts(override: Override) -> tuple[str, ...]:
    """Return an override's value or values, as Hydra's multirun writes them."""
    if override.is_delete():
        raise InputError(f"{override.input_line}: a sweep can change keys, not delete them")
    if not override.is_sweep_override():
        return (override.get_value_element_as_str(),)
    if not override.is_discrete_sweep() or override.value_type is None:
        raise InputError(f"{override.input_line}: an interval has no grid; list values")
    try:
        return tuple(override.sweep_string_iterator())
    except HydraException as error:
        raise InputError(f"{override.input_line}: {error}") from error


def _key_in(values: Mapping[str, Any], override: Override) -> str:
    """Return the key under which a grid holds what an override changes, or its own."""
    plain = str(override.key_or_group)
    for key in values:
        if key.lstrip("+") == plain:
            return key
    return str(override.get_key_element())
