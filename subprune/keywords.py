"""What an option is, and functions whose keywords are the fields of a dataclass of options.

An option is declared once, as a field made by `option`. The signature and the docstring of the
public functions, the flags of the command line, the keys of configuration files and the reference
page are all made from these fields, and so carry the same names.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from subprune.errors import OptionError, closest
from subprune.messages import FLAGS, KEYWORDS, Message, Spelling, spelled

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "RENAMED",
    "Option",
    "check_kind",
    "describe",
    "must_be",
    "option",
    "options_of",
    "same",
    "stand_in",
    "takes",
    "takes_one",
]

Given = ParamSpec("Given")
Chosen = TypeVar("Chosen")
Answer = TypeVar("Answer")

_WIDTH = 96  # of docstrings


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: everything that any front end has to know about it."""

    name: str
    kind: Any  # its type
    default: Any
    help: str  # a sentence without its full stop; a message where it mentions other options
    panel: str = ""  # the heading under which it is listed
    metavar: str = ""  # what the command line calls the value
    several: bool = False  # a flag gives one of several values, as often as needed
    flag: bool = True  # whether text can say it; otherwise it is for Python alone
    planned: bool = True  # whether the plan of a result keeps it
    repeated: bool = True  # whether the same call needs it
    variable: bool = False  # its value is shown by the name of the option: data, functions
    # text of a flag → the value to give; None: text of the simple type `kind` holds
    parse: Callable[[Any], Any] | None = None
    take: Callable[[Any], Any] | None = None  # the value given, unless None → the value kept
    show: Callable[[Any], Any] | None = None  # the value kept, unless None → plain data

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values of a closed set, None among them; empty if the set is open."""
        members = _members(self.kind)
        closed = [m for m in members if typing.get_origin(m) is Literal or m is type(None)]
        if len(closed) < len(members) or closed == [type(None)]:
            return ()
        literals = [x for m in closed for x in typing.get_args(m)]
        return (*literals, *([None] if type(None) in members else []))

    @property
    def switch(self) -> bool:
        """Whether it is turned on or off."""
        return bool in _members(self.kind) and not self.variable

    def kept(self, value: Any) -> Any:
        """What is kept of the value given: an object where a string was a shortcut for it."""
        return value if value is None or self.take is None else self.take(value)

    def differs(self, value: Any) -> bool:
        """Whether a value kept is another than the default; data is never compared."""
        default = self.kept(self.default)
        return value is not default and (self.variable or bool(value != default))

    def plain(self, value: Any) -> Any:
        """The value as data without objects."""
        return value if value is None or self.show is None else self.show(value)


def _members(kind: Any) -> tuple[Any, ...]:
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if union else (kind,)


def option(default: Any, help: str, **settings: Any) -> Any:
    """A field of a dataclass of options; `settings` are those of `Option`."""
    metadata = {"option": {"help": help, **settings}}
    return dataclasses.field(default=default, metadata=metadata)


def same(kind: type, name: str) -> Any:
    """The option of that name of another dataclass, as a field of this one."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(kind)
    shared = next(f for f in fields if f.name == name)
    return dataclasses.field(default=shared.default, metadata=shared.metadata)


def stand_in(path: str) -> type:
    """A class of the same name and place as another, for annotations that are read before the
    other's module is imported.
    """
    module, _, name = path.rpartition(".")
    return type(name, (), {"__module__": module, "__doc__": f"Stands for {path}."})


@functools.cache
def options_of(kind: type) -> Mapping[str, Option]:
    """The table: the options that a dataclass declares, by name."""
    kinds = typing.get_type_hints(kind)
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(kind)
    return {
        f.name: Option(name=f.name, kind=kinds[f.name], default=f.default, **f.metadata["option"])
        for f in fields
    }


def takes(
    options: Callable[Given, Chosen],
) -> Callable[
    [Callable[[nn.Module, Any, Chosen], Answer]],
    Callable[Concatenate[nn.Module, Any, Given], Answer],
]:
    """Give a function of model, data and a record of options the options as keywords.

    Type checkers and editors see the keywords of the dataclass; `inspect.signature` and `help`
    see them too, with a paragraph for each.
    """
    table = options_of(typing.cast(type, options))

    def decorate(
        function: Callable[[nn.Module, Any, Chosen], Answer],
    ) -> Callable[Concatenate[nn.Module, Any, Given], Answer]:
        signature = _signature(function, table)

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Answer:
            _check_names(function.__name__, table, args, given)
            bound = signature.bind(*args, **given).arguments
            model, data = bound.pop("model"), bound.pop("data")
            return function(model, data, options(**bound))  # type: ignore[call-arg]

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = _docstring(function.__doc__ or "", table)
        return call

    return decorate


def _signature(function: Callable[..., Any], table: Mapping[str, Option]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = [signature.parameters[name] for name in ("model", "data")]
    parameters += [
        inspect.Parameter(
            o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default, annotation=o.kind
        )
        for o in table.values()
    ]
    return signature.replace(parameters=parameters)


def _check_names(
    function: str, known: Mapping[str, Option], args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> None:
    """Unknown keywords are refused with the nearest known one, not by a bare TypeError."""
    if len(args) > 2:
        raise OptionError(
            f"{function} takes the model and the data, and everything else by name, such as "
            f"compression=2; got {args[2]!r:.80} as a third"
        )
    for name in keywords:
        if name not in known and name not in ("model", "data"):
            if name in RENAMED:
                raise OptionError(RENAMED[name])
            hint = closest(name, known)
            raise OptionError(f"unknown option {name!r}: {hint}allowed are {', '.join(known)}")


RENAMED: Mapping[str, Message] = {
    "dry_run": Message(
        "dry_run is not an option: subprune.forecast takes the same options and prunes nothing"
    ),
    "reweight": Message(
        "{reweight:name} is now {fit:name}: {fit=} leaves weights as they are, and by default they "
        "are fitted",
        fit="keep",
    ),
    "form": Message(
        "{form:name} is now {target:name}: the forms of the paper are its values layer, sequential "
        "and asymmetric"
    ),
    "verify": Message("{verify:name} is now {verify_data:name}, labelled data of any kind"),
    "rule": Message("{rule:name} is now {allocate:name}, how a goal is divided among the groups"),
}
"""Options that had another name; the old one is refused with the new one, in each spelling."""


def _docstring(text: str, table: Mapping[str, Option]) -> str:
    """The docstring with a line for every option at the end of its section ``Args:``."""
    before, returns, after = inspect.cleandoc(text).partition("\n\nReturns:")
    lines = [
        textwrap.fill(
            f"{o.name}: {describe(o)}",
            _WIDTH,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
            break_on_hyphens=False,
        )
        for o in table.values()
    ]
    return "\n".join([before, *lines]) + returns + after


def describe(o: Option, spelling: Spelling = KEYWORDS) -> str:
    """What it does, in a front end's words, with its allowed values."""
    words = str(spelled(o.help, spelling))
    if names := [x for x in o.choices if x is not None]:
        show = str if spelling is FLAGS else repr
        words += f"; one of {', '.join(map(show, names))}"
    return f"{words}."


def must_be(name: str, allowed: str, value: Any) -> Message:
    """``ridge must be a number of at least 0, got 'a'``"""
    return Message(
        f"{{{name}:name}} must be {{allowed}}, got {{got!r}}", allowed=allowed, got=value
    )


def takes_one(function: Callable[..., Any]) -> bool:
    """Whether it can be called with one argument, as far as it says."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # built in, without a signature
        return True
    return True


def check_kind(o: Option, value: Any) -> None:
    """Closed sets and switches; other kinds have checks of their own."""
    if o.choices and value not in o.choices:
        words = [x for x in o.choices if x is not None]
        raise OptionError(
            Message(
                f"{{{o.name}=}}: {{hint}}allowed are {{allowed}}",
                **{o.name: value},
                hint=closest(str(value), words),
                allowed=", ".join(words),
            )
        )
    if o.switch and not isinstance(value, bool) and value is not o.default:
        allowed = "True, False or None" if o.default is None else "True or False"
        raise OptionError(must_be(o.name, allowed, value))
