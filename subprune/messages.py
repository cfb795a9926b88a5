"""Text that mentions options, and the three ways to spell them.

Python says ``ridge=0.5``, the command line ``--ridge 0.5``, a configuration file ``ridge = 0.5``.
A `Message` keeps the options that it mentions apart from its words, so that each front end can
spell them in its own way:

    message = Message("{ridge=} has no effect where nothing is fitted, and {fit=} fits nothing",
                      ridge=0.5, fit="keep")
    str(message)            # ridge=0.5 has no effect where nothing is fitted, and fit='keep' …
    message.spelled(FLAGS)  # --ridge 0.5 has no effect where nothing is fitted, and --fit keep …
"""

from __future__ import annotations

import json
import shlex
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FLAGS", "KEYS", "KEYWORDS", "Message", "Spelling", "joined", "listed", "spelled"]


@dataclass(frozen=True)
class Spelling:
    """How a front end writes options."""

    name: Callable[[str], str]  # as the subject of a sentence: "--round-to must be positive"
    bare: Callable[[str], str]  # as a thing to give: "give train_data="
    given: Callable[[str, Any], str]  # together with its value
    item: Callable[[str, str], str]  # what it says about one name: "budgets['conv1'] must be 3"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _number_or(value: Any, text: Callable[[Any], str]) -> str:
    """Fractions without digits that say nothing: 5000.0 is 5000."""
    if not isinstance(value, float):
        return text(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _word(value: Any) -> str:
    """One word of a shell command; classes and functions by their names."""
    plain = value if isinstance(value, str | int) else getattr(value, "__name__", value)
    return shlex.quote(_number_or(plain, str))


def _given_flag(name: str, value: Any) -> str:
    """``--round-to 8``, ``--no-time-calls``, or the flag once for each of several values."""
    if value is None:
        return _flag(name)
    if isinstance(value, bool):
        return _flag(name if value else f"no_{name}")
    if isinstance(value, Mapping):
        value = [f"{key}={x}" for key, x in value.items()]
    several = value if isinstance(value, list | tuple) else [value]
    return " ".join(f"{_flag(name)} {_word(x)}" for x in several)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(x)}" for k, x in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool | int):
        return json.dumps(value)
    return _number_or(value, lambda x: json.dumps(str(x), ensure_ascii=False))


KEYWORDS = Spelling(
    name=str,
    bare=lambda name: f"{name}=",
    given=lambda name, value: f"{name}={_number_or(value, repr)}",
    item=lambda name, key: f"{name}[{key!r}]",
)
"""Python: ``round_to=8``."""

FLAGS = Spelling(
    name=_flag,
    bare=_flag,
    given=_given_flag,
    item=lambda name, key: f"{_flag(name)} of {key!r}",
)
"""The command line: ``--round-to 8``."""

KEYS = Spelling(
    name=str,
    bare=str,
    given=lambda name, value: f"{name} = {_toml(value)}",
    item=lambda name, key: f"{name}.{json.dumps(key, ensure_ascii=False)}",
)
"""A TOML file: ``round_to = 8``."""


class Message(str):
    """Text with fields, as a string in Python's spelling.

    ``{ridge=}`` is an option with its value, or by itself if no value is given with the template;
    ``{ridge:name}`` is its name alone; ``{budgets:item}`` is what it says about the name given with the
    template; any other field is formatted as `str.format` does, and may be a `Message` itself.
    """

    template: str
    parts: Mapping[str, Any]

    def __new__(cls, template: str, /, **parts: Any) -> Message:
        message = super().__new__(cls, _filled(template, parts, KEYWORDS))
        message.template, message.parts = template, parts
        return message

    def spelled(self, spelling: Spelling) -> str:
        """The text as this front end puts it."""
        return _filled(self.template, self.parts, spelling)

    @property
    def options(self) -> dict[str, Any]:
        """The options that it mentions: their values, None where no value is at issue."""
        named: dict[str, Any] = {}
        for _, field, layout, _ in string.Formatter().parse(self.template):
            part = self.parts.get(field or "")
            if isinstance(part, Message):
                named.update(part.options)
            elif field and (field.endswith("=") or layout in ("name", "item")):
                name = field.removesuffix("=")
                named[name] = self.parts.get(name, named.get(name))
        return named

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (self.template,), dict(self.parts)

    def __deepcopy__(self, memo: object) -> Message:
        return self  # as any other string


def _filled(template: str, parts: Mapping[str, Any], spelling: Spelling) -> str:
    formatter = string.Formatter()
    text = ""
    for literal, field, layout, conversion in formatter.parse(template):
        text += literal
        if field is None:
            continue
        name = field.removesuffix("=")
        if field != name:
            has_value = name in parts
            text += spelling.given(name, parts[name]) if has_value else spelling.bare(name)
        elif layout == "name":
            text += spelling.name(name)
        elif layout == "item":
            text += spelling.item(name, parts[name])
        elif conversion is None:
            text += format(spelled(parts[name], spelling), layout or "")
        else:
            text += format(formatter.convert_field(parts[name], conversion), layout or "")
    return text


def spelled(text: Any, spelling: Spelling) -> Any:
    """A message as this front end puts it; anything else as it is."""
    return text.spelled(spelling) if isinstance(text, Message) else text


def joined(texts: Iterable[str], between: str = "; ") -> Message:
    """Several texts, messages or not, as one."""
    parts = {f"text{i}": text for i, text in enumerate(texts)}
    return Message(between.join(f"{{{name}}}" for name in parts), **parts)


def listed(names: Iterable[str], between: str = ", ") -> Message:
    """Several options by name: ``compression, speedup``."""
    return Message(between.join(f"{{{name}:name}}" for name in names))
