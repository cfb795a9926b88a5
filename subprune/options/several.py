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
Goals = list[Any] | tuple[Any, ...]


class ForGoals(Protocol[Given, Answer]):
    """A call for one goal, or for a list of goals of one kind."""

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *, compression: Goals, **more: Any
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *, speedup: Goals, **more: Any
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *, params: Goals, **more: Any
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *, flops: Goals, **more: Any
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *, latency: Goals, **more: Any
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *, keep: Goals, **more: Any
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *, budgets: Goals, **more: Any
    ) -> list[Answer]: ...

    @overload
    def __call__(
        self, model: nn.Module, data: Any, *args: Given.args, **kwargs: Given.kwargs
    ) -> Answer: ...


def several_goals(
    goals: Sequence[str], options: Callable[..., Any], hold: Callable[..., Any], held: type
) -> Callable[[Callable[Concatenate[nn.Module, Any, Given], Answer]], ForGoals[Given, Answer]]:
    """Let one of the goals be a list. `options` makes a record of keywords, or refuses them. `hold`
    reads the data into an object of the class `held`, which goes where data goes and keeps what
    the first goal has found out.
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
            # All goals are refused before any work; what can be read only once is read here.
            first = options(**{**bound, name: values[0]})
            kept = {n: getattr(first, n) for n in bound}
            each = [{**kept, name: value} for value in values]
            for others in each[1:]:
                options(**others)
            if not isinstance(data, held):
                data = hold(model, data, **each[0])
            return [one(model, data, **asked) for asked in each]

        return call

    return decorate
