"""What a model of the transformers library built from a config would look like, without memory.

Everything here goes by experiment: a config is changed, a model is built from it on the meta
device, and its shapes are looked at. No table of families says what a field means.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from subprune.program.process import quiet

__all__ = ["Blueprint", "Shapes", "shapes_of"]

Shapes = dict[str, tuple[int, ...]]


def shapes_of(model: nn.Module) -> Shapes:
    """Shapes of what a checkpoint holds, by name."""
    return {name: tuple(x.shape) for name, x in model.state_dict().items()}


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A class of models with the content of a config, of which variants can be built."""

    kind: type[nn.Module]
    config_kind: Any
    content: Mapping[str, Any]

    @classmethod
    def of(cls, model: nn.Module) -> Blueprint | None:
        """The model's own; None if it has no config in the manner of transformers."""
        config: Any = getattr(model, "config", None)
        if config is None or not hasattr(config, "to_dict") or not hasattr(config, "from_dict"):
            return None
        return cls(type(model), type(config), config.to_dict())

    @property
    def sections(self) -> dict[str, Mapping[str, Any]]:
        """The config itself (under an empty name), and the configs inside it."""
        inner = {k: v for k, v in self.content.items() if isinstance(v, dict) and "model_type" in v}
        return {"": self.content, **inner}

    def changed(self, section: str, values: Mapping[str, Any]) -> Blueprint:
        """The same with other values in one section."""
        content = copy.deepcopy(dict(self.content))
        (content[section] if section else content).update(values)
        return Blueprint(self.kind, self.config_kind, content)

    def accepted(self) -> bool:
        """Whether the config's own checks take these values."""
        with _trial(), contextlib.suppress(Exception):
            self.config_kind.from_dict(copy.deepcopy(dict(self.content)))
            return True
        return False

    def shapes(self) -> Shapes | None:
        """Shapes of the tensors of a model built from it; None if it cannot be built."""
        with _trial(), contextlib.suppress(Exception):
            config = self.config_kind.from_dict(copy.deepcopy(dict(self.content)))
            with torch.device("meta"):
                return shapes_of(self.kind(config))
        return None


@contextlib.contextmanager
def _trial() -> Iterator[None]:
    """Neither warnings nor random numbers of the caller's are spent on a trial."""
    with quiet(logging.ERROR), torch.random.fork_rng(devices=_devices()):
        yield


def _devices() -> Sequence[int]:
    return range(torch.cuda.device_count())
