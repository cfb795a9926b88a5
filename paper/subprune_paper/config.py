"""An experiment as a TOML file: read, checked, frozen. Unknown keys are refused with the
nearest known.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from subprune.budget.allocators import ALLOCATORS
from subprune.errors import DataError, OptionError, closest
from subprune.methods import METHODS, find_method
from subprune.select.sensitivity import DELTA
from subprune.statistics.batchnorm import BATCHNORM
from subprune.zoo.datasets import dataset_names
from subprune.zoo.models import model_names
from subprune_paper.training import recipe_names

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

__all__ = [
    "FINETUNE",
    "GOALS",
    "SHIPPED_CONFIGS",
    "Config",
    "find_config",
    "parse_config",
    "read_config",
    "shipped_names",
]

FINETUNE = ("none", "limited", "full")
GOALS = ("compression", "keep")
RENAMED = {"target": "goal; in subprune.prune, target is what a layer should give"}
SHIPPED_CONFIGS = Path(__file__).resolve().parent / "configs"


@dataclass(frozen=True)
class Config:
    """A grid of cells: every combination of method, reweighting, BatchNorm, value, fine-tuning and
    seed.

    Attributes:
        name: of the experiment; letters, digits and dashes.
        model: as `models.build` knows it.
        dataset: as `datasets.load` knows it.
        methods: registered methods, those of `modules` too.
        title: for reports.
        weights: "shipped" for the LeNet of the package, or a file in the folder of weights
            (--models-dir).
        weights_sha256: if given, the file must have this checksum.
        only: groups that are pruned, a name or pattern as for `subprune.prune` or a list; none
            means all that can be.
        ignore: groups that are left whole, given in the same way.
        goal: "compression" (parameters before / after) or "keep" (share of the prunable units).
        values: of the goal; compression 1 and keep 1 mean the dense network, which is run in any
            case.
        allocate: budget rule of the methods that have none of their own; "uniform" with keep:
            equal fractions.
        curves: whose curves a method's budgets are taken from, if not its own:
            {layer-greedy-fs = "layer-in-change"}.
        batches, batch_size, augmented: the calibration data, drawn by seed from the training
            images.
        verify_samples: training images that equal-accuracy budgets are measured on, drawn by seed.
        delta: allowed probability of failure of budgets by sensitivity sampling; in the paper 1e-12
            on MNIST, 1e-16 on CIFAR-10.
        test: test images to measure top-1 on; 0 means all.
        finetune_epochs: 0 means as in the paper.
        modules: Python files, next to the TOML file, that register methods or models of your own.
        memory: GB one worker needs; decides how many run at once.
        paper_model: name of the network in the paper's tables; "" if they have no such rows.
        paper_dense: the paper's dense top-1.
    """

    name: str
    model: str
    dataset: str
    methods: tuple[str, ...]
    title: str = ""
    weights: str = "shipped"
    weights_sha256: str = ""
    only: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    goal: str = "compression"
    values: tuple[float, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    allocate: str = "equal-accuracy"
    curves: dict[str, str] = dataclasses.field(default_factory=dict)
    reweight: tuple[bool, ...] = (True, False)
    batchnorm: tuple[str, ...] = ("keep",)
    finetune: tuple[str, ...] = ("none",)
    seeds: tuple[int, ...] = (42, 43, 44, 45, 46)
    batches: int = 4
    batch_size: int = 128
    augmented: bool = False
    verify_samples: int = 10_000
    delta: float = DELTA
    test: int = 0
    finetune_epochs: int = 0
    modules: tuple[str, ...] = ()
    memory: float = 2.0
    paper_model: str = ""
    paper_dense: float = 0.0
    # of the modules: name, text
    sources: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", self.name):
            raise OptionError(
                f"name is {self.name!r}; allowed are small letters, digits and dashes."
            )
        _one_of("dataset", [self.dataset], dataset_names())
        _one_of("goal", [self.goal], GOALS)
        _one_of("allocate", [self.allocate], ALLOCATORS)
        _one_of("batchnorm", self.batchnorm, BATCHNORM)
        _one_of("finetune", self.finetune, FINETUNE)
        if set(self.finetune) != {"none"}:
            _one_of("model (to be fine-tuned)", [self.model], recipe_names())
        if not self.sources:  # otherwise the modules may bring more
            _one_of("model", [self.model], model_names())
            _one_of("methods", self.methods, METHODS)
            _one_of("curves", [*self.curves, *self.curves.values()], METHODS)
        self._check_numbers()

    def _check_numbers(self) -> None:
        for field in ("methods", "values", "reweight", "batchnorm", "finetune", "seeds"):
            entries = getattr(self, field)
            if not entries or len(set(entries)) < len(entries):
                raise OptionError(f"{field} is {list(entries)}; give at least one, and none twice.")
        for field in ("batches", "batch_size"):
            if getattr(self, field) < 1:
                raise OptionError(f"{field} is {getattr(self, field)}; it must be at least 1.")
        for field in ("verify_samples", "test", "finetune_epochs"):
            if getattr(self, field) < 0:
                raise OptionError(f"{field} is {getattr(self, field)}; it must not be negative.")
        low, high = (1, float("inf")) if self.goal == "compression" else (0, 1)
        for value in self.values:
            if not low <= value <= high or value == 0:
                raise OptionError(
                    f"values holds {value}; {self.goal} must lie between {low} and {high}."
                )
        if not 0 < self.delta < 1:
            raise OptionError(f"delta is {self.delta}; it must lie between 0 and 1.")
        if not self.memory > 0:
            raise OptionError(f"memory is {self.memory}; give the GB one worker needs.")

    def rule(self, method: str) -> str:
        """The budget rule of a method: its own, or the one for all layerwise methods."""
        preset = find_method(method).allocate
        return (
            self.allocate
            if preset == "sampling" and self.allocate == "uniform"
            else preset or self.allocate
        )


def _one_of(what: str, values: Any, allowed: Any) -> None:
    for value in values:
        if value not in allowed:
            raise OptionError(
                f"{what} is {value!r}; {closest(value, allowed)}allowed are "
                f"{', '.join(sorted(allowed))}."
            )


def shipped_names() -> list[str]:
    """The experiments that come with the package."""
    return sorted(path.stem for path in SHIPPED_CONFIGS.glob("*.toml"))


def find_config(name: str) -> Path:
    """A file, or the name of an experiment that comes with the package."""
    path = Path(name)
    if path.is_file():
        return path
    if (SHIPPED_CONFIGS / f"{path.stem}.toml").is_file() and path.parent == Path("."):
        return SHIPPED_CONFIGS / f"{path.stem}.toml"
    near = closest(path.stem, shipped_names())
    raise OptionError(
        f"{name} is not a file; {near}give a .toml file or one of {', '.join(shipped_names())}."
    )


def read_config(name: str | Path) -> Config:
    """The checked experiment of a TOML file, with the text of its modules."""
    path = find_config(str(name))
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from error
    sources = []
    for module in content.get("modules", ()):
        file = path.parent / str(module)
        if not file.is_file():
            raise DataError(
                f"modules names {module!r}, and {file} is not a file; put it next to the TOML file."
            )
        sources.append((file.stem, file.read_text(encoding="utf-8")))
    try:
        return parse_config(content, tuple(sources))
    except OptionError as error:
        raise OptionError(f"{path.name}: {error}") from error


def parse_config(content: dict[str, Any], sources: tuple[tuple[str, str], ...] = ()) -> Config:
    """The checked experiment of a table of settings."""
    hints = {k: v for k, v in get_type_hints(Config).items() if k != "sources"}
    values = {}
    for key, value in content.items():
        if key in RENAMED:
            raise OptionError(f"{key} is now {RENAMED[key]}.")
        if key not in hints:
            raise OptionError(
                f"unknown setting {key!r}; {closest(key, hints)}allowed are {', '.join(hints)}."
            )
        values[key] = _typed(key, value, hints[key])
    missing = dataclasses.MISSING
    required = [
        f.name
        for f in dataclasses.fields(Config)
        if f.default is missing and f.default_factory is missing
    ]
    if absent := [name for name in required if name not in values]:
        raise OptionError(
            f"{', '.join(absent)} is not set; an experiment needs {', '.join(required)}."
        )
    return Config(**values, sources=sources)


def _typed(key: str, value: Any, kind: Any) -> Any:
    """The value as the field's type; TOML has lists where we have tuples,
    and 1 where 1.0 will do.
    """
    if get_origin(kind) is tuple:
        choice = key in ("only", "ignore")
        if choice and isinstance(value, str):
            return (value,)
        if not isinstance(value, list):
            raise OptionError(
                f"{key} is {value!r}; it must be a "
                f"{'string or a list of them' if choice else 'list'}."
            )
        return tuple(_typed(key, v, get_args(kind)[0]) for v in value)
    if get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise OptionError(f"{key} is {value!r}; it must be a table, {{ name = value }}.")
        return {name: _typed(f"{key}.{name}", v, get_args(kind)[1]) for name, v in value.items()}
    fits = isinstance(value, (int, float) if kind is float else kind) and (
        kind is bool
    ) == isinstance(value, bool)
    if not fits:
        raise OptionError(f"{key} holds {value!r}; it must be of type {kind.__name__}.")
    return float(value) if kind is float else value
