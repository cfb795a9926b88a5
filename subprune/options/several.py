"""A list where a goal belongs: one result for each, and what they share is done once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from subprune.errors import OptionError
from subprune.messages import Message, listed

if TYPE_CHECKING:
    from torch import nn

__all__ = ["several_goals"]

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class ForGoals(Protocol[Given, Answer]):
    """A call for one goal, or for a list of goals of one kind."""

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *, compression: Sequence[float], **more: Any
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *, speedup: Sequence[float], **more: Any
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *args: Given.args, **kwargs: Given.kwargs
    ) -> Answer: ...


def several_goals(
    goals: Sequence[str], calibrate: Callable[..., Any], calibrated: type
) -> Callable[[Callable[Concatenate[nn.Module, Any, Given], Answer]], ForGoals[Given, Answer]]:
    """Let one of the goals be a list. `calibrate` does what all of them have in common; it makes an
    object of the class `calibrated`, which goes where data goes.
    """

    def decorate(
        function: Callable[Concatenate[nn.Module, Any, Given], Answer],
    ) -> ForGoals[Given, Answer]:
        one: Callable[..., Answer] = function

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            lists = [name for name in goals if isinstance(given.get(name), list | tuple)]
            if not lists:
                return one(*args, **given)
            name, values = lists[0], given[lists[0]]
            if len(lists) > 1 or not values:
                words = "one goal may be a list, and not an empty one; got lists for {given}"
                raise OptionError(Message(words, given=listed(lists, " and ")))
            try:
                bound = inspect.signature(function).bind(*args, **given).arguments
            except TypeError:  # refused there, in words
                return one(*args, **{**given, name: values[0]})
            model, data = bound.pop("model"), bound.pop("data")
            if not isinstance(data, calibrated):
                others = {n: x for n, x in bound.items() if n not in goals}
                data = calibrate(model, data, **others)
            each = [{**bound, name: value} for value in values]
            return [one(model, data, **options) for options in each]

        return call

    return decorate
