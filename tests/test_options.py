"""One table of options: keyword, flag, key, reference page and the call in a report are the same."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import pickle
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import typer
from run_cli import runner
from torch import Tensor, nn

import subprune
from subprune.budget.allocators import ALLOCATORS
from subprune.cli.app import app
from subprune.cli.arguments import read, text_kind
from subprune.data.views import VIEWS
from subprune.errors import BudgetError, OptionError
from subprune.fit.fits import FITS
from subprune.guarantees import guarantees
from subprune.keywords import RENAMED, option, options_of, takes
from subprune.messages import FLAGS, KEYS, KEYWORDS, Message, joined, listed
from subprune.options.checks import GOALS
from subprune.options.names import (
    AllocatorName,
    BatchNorm,
    FitName,
    Patches,
    SelectorName,
    TargetName,
    ViewName,
)
from subprune.options.options import GuaranteeOptions, Options
from subprune.options.table import OPTIONS
from subprune.select.selectors import SELECTORS
from subprune.statistics import batchnorm, target
from subprune.statistics.targets import TARGETS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).resolve().parent.parent

OTHER: dict[str, Any] = {
    "compression": 2.5,
    "speedup": 3.0,
    "params": "50%",
    "flops": 200_000.0,
    "latency": "60%",
    "keep": 0.25,
    "budgets": {"layer1.0.conv1": 3, "fc": 7},
    "of": "blocks",
    "uniform": True,
    "streams": True,
    "method": "layer-in-change",
    "target": "layer",
    "selector": "random",
    "fit": "keep",
    "allocate": "error",
    "ridge": 0.1,
    "folds": 2,
    "drift": True,
    "refine": 3,
    "epsilon": 0.3,
    "patches": "random",
    "batchnorm": "sequential",
    "train_data": "a folder/train.npz",
    "verify_data": "mnist",
    "cache": "curves",
    "checkpoint": "steps",
    "round_to": 16,
    "only": ["conv*", "re:fc[12]"],
    "ignore": ["conv1"],
    "n_samples": 100,
    "augment": ["mirror", "crop"],
    "seed": 3,
    "threads": 2,
    "distributed": False,
    "time_calls": False,
}
"""A value of every option that text can say, none of them the default."""


def parsed(words: list[str]) -> dict[str, Any]:
    """What `subprune prune` is called with for these words; nothing is run."""
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), "prune")  # type: ignore[attr-defined]
    words = ["--model", "lenet", "--data", "mnist", *words]
    return dict(command.make_context("prune", words).params)


# ---- the same name everywhere --------------------------------------------------------------------


def test_every_option_is_tried() -> None:
    assert [name for name, o in OPTIONS.items() if o.flag] == list(OTHER)
    assert [name for name, o in OPTIONS.items() if not o.flag] == [
        "forward",
        "progress",
        "callback",
    ]
    assert all(OTHER[name] != OPTIONS[name].default for name in OTHER)


@pytest.mark.parametrize("name", OTHER)
def test_keyword_flag_and_key_agree(name: str) -> None:
    """Each spelling of an option, read by its own reader, is that keyword with that value."""
    value = OTHER[name]
    for function in (subprune.prune, subprune.forecast):
        assert inspect.signature(function).parameters[name].default == OPTIONS[name].default
    assert FLAGS.name(name) == "--" + name.replace("_", "-")
    given = read(parsed(shlex.split(FLAGS.given(name, value))))
    assert {k: str(v) if isinstance(v, Path) else v for k, v in given.items()} == {name: value}
    assert tomllib.loads(KEYS.given(name, value)) == {name: value}
    assert eval(f"dict({KEYWORDS.given(name, value)})") == {name: value}


def test_shares_by_name_are_said_in_every_spelling() -> None:
    keep = {"head": 0.75, "layer1.*": "50%"}
    given = read(parsed(shlex.split(FLAGS.given("keep", keep))))
    assert given == {"keep": keep}
    assert tomllib.loads(KEYS.given("keep", keep)) == given
    assert eval(f"dict({KEYWORDS.given('keep', keep)})") == given
    assert read(parsed(["--keep", "50%"])) == {"keep": 0.5}
    mixed = read(parsed(["--keep", "head=0.75", "--keep", "50%"]))
    assert mixed == {"keep": {"head": 0.75, "*": "50%"}}
    for words in (["--keep", "0.5", "--keep", "0.6"], ["--keep", "=0.5", "--keep", "a=1"]):
        with pytest.raises(OptionError, match="NAME=FRACTION"):
            read(parsed(words))


def test_flags_that_are_not_given_leave_the_defaults() -> None:
    given = parsed([])
    assert read(given) == {}
    for name in OTHER:
        assert (
            (given[name] == ()) if OPTIONS[name].several else given[name] == OPTIONS[name].default
        )


def test_the_signature_is_the_table() -> None:
    for function in (subprune.prune, subprune.forecast):
        model, data, *named = inspect.signature(function).parameters.values()
        assert [model.name, data.name, *(p.name for p in named)] == ["model", "data", *OPTIONS]
        assert all(p.kind is p.KEYWORD_ONLY for p in named)
        assert all(f"    {name}: " in (function.__doc__ or "") for name in OPTIONS)


def flags_of(command: str) -> set[str]:
    """The flags of a command, each by its only name; of switches the one that turns on."""
    group = typer.main.get_command(app)
    chosen = group.get_command(typer.Context(group), command)  # type: ignore[attr-defined]
    named = [p for p in chosen.params if p.param_type_name == "option" and p.name != "help"]
    for parameter in named:
        assert parameter.opts == [FLAGS.name(parameter.name)], parameter.opts
    return {parameter.name for parameter in named}


def keywords_of(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


# What names a file or a built-in set, or says where something is written: of the command line alone.
FILES = {"model", "data", "weights", "data_dir", "download", "output", "json"}


def test_flags_beside_the_table_are_keywords_too() -> None:
    """What flags say about data are keywords of `read_data`, or of what the command calls."""
    reading = flags_of("prune") - {*OPTIONS} - FILES
    assert reading == (keywords_of(subprune.read_data) - {"n_samples", "seed", "prepare"}) | {
        "guarantees",  # a function
        "dry_run",  # subprune.forecast
    }
    measured = flags_of("eval") - FILES - {"dense_weights"}
    known = keywords_of(subprune.evaluate) | keywords_of(subprune.read_data)
    assert measured - known == {"skip"}, "a slice of the tokens, in Python"
    assert keywords_of(subprune.evaluate) - measured == {"forward", "progress"}
    assert flags_of("inspect") - FILES == reading - {"guarantees", "dry_run"}


def test_guarantees_share_their_options() -> None:
    """Those of the same name have the same default and mean the same; bounds have several shares."""
    own = options_of(GuaranteeOptions)
    assert list(inspect.signature(guarantees).parameters) == ["model", "data", *own]
    for name in set(own) & set(OPTIONS) - {"keep", "target"}:
        assert replace(own[name], kind=OPTIONS[name].kind) == OPTIONS[name]
        assert own[name].kind == OPTIONS[name].kind
    with pytest.raises(OptionError, match="folds must be a whole number from 1"):
        GuaranteeOptions(folds=0)


def test_closed_sets_are_those_of_the_code() -> None:
    assert get_args(AllocatorName) == tuple(ALLOCATORS)
    assert get_args(TargetName) == tuple(TARGETS)
    assert get_args(SelectorName) == tuple(SELECTORS)
    assert get_args(FitName) == tuple(FITS)
    assert get_args(ViewName) == tuple(VIEWS)
    assert get_args(Patches) == get_args(target.Patches)
    assert get_args(BatchNorm) == get_args(batchnorm.BatchNorm)
    assert set(GOALS) <= set(OPTIONS)


def test_the_reference_page_is_made_from_the_table() -> None:
    spec = importlib.util.spec_from_file_location("page", ROOT / "scripts" / "options_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), f"run {spec.origin}"


# ---- options that are objects ---------------------------------------------------------------------


@dataclass(frozen=True)
class Brush:
    width: int = 1


BRUSHES = {"fine": Brush(), "broad": Brush(9)}


@dataclass(frozen=True, kw_only=True)
class Painting:
    """As `Options`: a string is a shortcut for an object."""

    brush: Brush | str = option(
        "fine",
        "what it is painted with",
        take=lambda given: BRUSHES.get(given, given),
        show=lambda kept: {"width": kept.width},
    )

    def __post_init__(self) -> None:
        for o in options_of(Painting).values():
            object.__setattr__(self, o.name, o.kept(getattr(self, o.name)))


def test_a_string_is_a_shortcut_for_an_object() -> None:
    o = options_of(Painting)["brush"]
    assert Painting().brush == Brush()
    assert Painting(brush="broad").brush == Painting(brush=Brush(9)).brush
    assert not o.differs(Painting(brush=Brush()).brush)
    assert o.differs(Painting(brush="broad").brush)
    assert o.plain(Painting(brush="broad").brush) == {"width": 9}
    assert text_kind(o) is str  # a flag takes the name

    @takes(Painting)
    def paint(model: nn.Module, data: Any, options: Painting) -> Any:
        """Paint."""
        return options.brush

    assert paint(nn.Identity(), None, brush="broad") == Brush(9)
    with pytest.raises(OptionError, match="did you mean 'brush'"):
        paint(nn.Identity(), None, brusch="broad")  # type: ignore[call-arg]


# ---- messages ------------------------------------------------------------------------------------

SAID: dict[str, tuple[Message, str, str, str]] = {
    "a value": (
        Message("{flops=} cannot be reached", flops="12.5%"),
        "flops='12.5%' cannot be reached",
        "--flops 12.5% cannot be reached",
        'flops = "12.5%" cannot be reached',
    ),
    "a whole number": (
        Message("{compression=} cannot", compression=5000.0),
        "compression=5000 cannot",
        "--compression 5000 cannot",
        "compression = 5000 cannot",
    ),
    "switches": (
        Message("{time_calls=} and {time_calls=}", time_calls=False),
        "time_calls=False and time_calls=False",
        "--no-time-calls and --no-time-calls",
        "time_calls = false and time_calls = false",
    ),
    "an option to give": (
        Message("give {train_data=}"),
        "give train_data=",
        "give --train-data",
        "give train_data",
    ),
    "a name": (
        Message("{round_to:name} must be positive, got {got!r}", got="{x}"),
        "round_to must be positive, got '{x}'",
        "--round-to must be positive, got '{x}'",
        "round_to must be positive, got '{x}'",
    ),
    "one of several": (
        Message("{budgets:item} must be 3", budgets="conv1"),
        "budgets['conv1'] must be 3",
        "--budgets of 'conv1' must be 3",
        'budgets."conv1" must be 3',
    ),
    "several values": (
        Message("{budgets=}, {only=}", budgets={"a": 1, "b.c": 2}, only=["x y", "z"]),
        "budgets={'a': 1, 'b.c': 2}, only=['x y', 'z']",
        "--budgets a=1 --budgets b.c=2, --only 'x y' --only z",
        'budgets = {"a" = 1, "b.c" = 2}, only = ["x y", "z"]',
    ),
    "a message in another": (
        Message("missed: {why}", why=joined([Message("{keep=}", keep=0.5), "and more"])),
        "missed: keep=0.5; and more",
        "missed: --keep 0.5; and more",
        "missed: keep = 0.5; and more",
    ),
    "names": (
        listed(["round_to", "keep"], " and "),
        "round_to and keep",
        "--round-to and --keep",
        "round_to and keep",
    ),
    "text of others is left alone": (
        Message("{file} and {seed=}", file="keep=0.5.npy {x}", seed=1),
        "keep=0.5.npy {x} and seed=1",
        "keep=0.5.npy {x} and --seed 1",
        "keep=0.5.npy {x} and seed = 1",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_every_front_end_spells_options_its_own_way(case: str) -> None:
    message, python, flags, keys = SAID[case]
    assert message == message.spelled(KEYWORDS) == python
    assert message.spelled(FLAGS) == flags
    assert message.spelled(KEYS) == keys


def test_errors_carry_their_parts() -> None:
    with pytest.raises(OptionError) as caught:
        Options(keep=0.5, ridge=0.5, fit="keep")
    error = caught.value
    assert str(error) == "ridge=0.5 has no effect with fit 'keep'; omit it"
    assert error.spelled(FLAGS).startswith("--ridge 0.5 has no effect")
    assert error.spelled(KEYS).startswith("ridge = 0.5 has no effect")
    assert error.options == {"ridge": 0.5}
    with pytest.raises(OptionError) as caught:
        Options(keep=0.5, patches="some")  # type: ignore[arg-type]
    assert caught.value.options == {"patches": "some"}
    assert caught.value.parts["allowed"] == "all, random"
    assert OptionError("a {plain} text").spelled(FLAGS) == "a {plain} text"


def test_messages_survive_copies_and_pickles() -> None:
    error = BudgetError(Message("{keep=}: {why!r}", keep=0.5, why="x"))
    for again in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert str(again) == "keep=0.5: 'x'"
        assert again.spelled(FLAGS) == "--keep 0.5: 'x'"


# ---- the call that makes it again ----------------------------------------------------------------


def small() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.randn(64, 6)


CALLS: dict[str, dict[str, Any]] = {
    "model, data, compression=1.5": {"compression": 1.5},
    "model, data, keep=0.5, ridge=0, only=['0'], seed=3": {
        "keep": 0.5,
        "ridge": 0,
        "only": "0",
        "seed": 3,
    },
    "model, data, budgets={'0': 3}, n_samples=None": {"budgets": {"0": 3}, "n_samples": None},
    "model, data, keep=0.5, only=[torch.nn.modules.linear.Linear]": {
        "keep": 0.5,
        "only": nn.Linear,
        "progress": False,
    },
    "model, data, params='60%', verify_data=verify_data, forward=forward": {
        "params": "60%",
        "verify_data": [(torch.randn(4, 6), torch.arange(4) % 3)],
        "forward": lambda item: item[0] if isinstance(item, tuple) else item,
    },
}


@pytest.mark.parametrize("words", CALLS)
def test_the_call_in_the_report_makes_it_again(words: str) -> None:
    model, data = small()
    given = CALLS[words]
    result = subprune.prune(model, data, **given)
    assert result.report.command == f"subprune.prune({words})"
    names = {"subprune": subprune, "torch": torch, "model": model, "data": data, **given}
    assert eval(result.report.command, names).plan.kept == result.plan.kept
    assert result.report.command.replace("'", "&#x27;") in result.report.to_html()


def test_a_module_is_called_by_its_name() -> None:
    model, data = small()
    result = subprune.prune(model, data, keep=0.5, ignore=model[2])  # type: ignore[index]
    assert result.report.command == "subprune.prune(model, data, keep=0.5, ignore=['2'])"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dry_run", "subprune.forecast takes the same options"),
        ("reweight", "reweight is now fit: fit='keep' leaves"),
        ("form", "form is now target"),
        ("verify", "verify is now verify_data"),
        ("rule", "rule is now allocate"),
    ],
)
def test_what_has_another_name_is_named(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        subprune.prune(nn.Linear(2, 2), torch.zeros(1, 2), keep=0.5, **{name: True})


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--no-reweight", "--reweight is now --fit: --fit keep leaves weights"),
        ("--form", "--form is now --target"),
    ],
)
def test_flags_that_were_renamed_name_the_new_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str, words: str
) -> None:
    done = runner(monkeypatch, capsys)("prune", "--model", "x", "--data", "y", flag)
    assert done.code == 2
    assert words in " ".join(done.err.split())
    assert set(RENAMED).isdisjoint(OPTIONS)
