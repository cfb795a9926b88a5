"""The dense and the pruned run on their way past the groups: the only thing that moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subprune.cutting.masking import keep_mask, overrides, zero
from subprune.loop.drift import drifting, station
from subprune.program.ops import window
from subprune.program.shelf import keeper
from subprune.statistics.batchnorm import stored_norms
from subprune.statistics.place import Place
from subprune.statistics.runs import Passage, Run
from subprune.statistics.shared import SharedInputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from subprune.fit.fit import Figures, Tensors
    from subprune.select.selector import Setting
    from subprune.structure.groups import Group

    # Newly fitted models, figures, and the dense run past the layer, if it went there.
    Refit = Callable[[Place, Sequence[Tensors]], tuple[list[Tensors], Figures, Run | None]]

__all__ = ["Tour", "switched_off"]


class Tour:
    """Both runs of one call, side by side.

    pruned: whether anybody looks at the activations of the model pruned so far; otherwise only its
    tensors are kept up to date. renew: whether BatchNorm statistics are re-estimated on the way.
    refit: what fits a layer whose inputs change though none of them is cut; None: none is fitted.
    mark_all: whether the run goes back to a group's first layer once it is decided.
    """

    def __init__(
        self,
        setting: Setting,
        groups: Sequence[Group],
        *,
        pruned: bool,
        renew: bool = False,
        refit: Refit | None = None,
        mark_all: bool = False,
    ) -> None:
        calibration, self.setting = setting.calibration, setting
        self._keep = keeper(calibration.model)
        self.dense, self.current = calibration.start(), calibration.start()
        self.pruned = pruned
        self.current.renew = stored_norms(calibration.structure.program) if renew else {}
        # Tensors of the model fitted without each judged fold; empty where nothing is held out.
        self.versions: list[Tensors] = [self.current.tensors] * calibration.judged
        self.rewritten: set[str] = set()  # tensors that fits replaced
        self._past_dense = Passage(self.dense, groups)
        self._past_current = Passage(self.current, groups, mark_all)
        self._undecided = {g.name: g for g in groups}
        self._removed: dict[int, Tensor] = {}
        self._refit = refit
        structure = calibration.structure
        waiting = [] if refit is None else drifting(structure, groups)
        self._stations = deque(station(structure, consumer) for consumer in waiting)
        self._inputs = SharedInputs()
        # Layers that were refitted though none of their inputs went, and what that brought.
        self.refitted: dict[str, Figures] = {}

    @property
    def models(self) -> list[Tensors]:
        """The tensors of the model pruned so far and of its versions."""
        return [self.current.tensors, *self.versions]

    def go_to(self, group: Group) -> Place:
        """Advance to the first layer that reads the group."""
        self._refit_before(min(c.use.op for c in group.consumers))
        marks = [passage.go_to(group) for passage in self._passages]
        source = self.current if self.pruned else self.dense
        return Place(
            group=group,
            current=source.fork(),
            dense=self.dense.fork(),
            removed=dict(self._removed),
            start=marks[-1],
            seed=self.setting.seed,
            metric=self.setting.metric,
        )

    @property
    def _passages(self) -> list[Passage]:
        return [self._past_dense, self._past_current] if self.pruned else [self._past_dense]

    def _refit_before(self, stop: int) -> None:
        """Refit the layers on the way to an operation whose inputs have changed."""
        while self._stations and self._stations[0].first_op < stop:
            layer = self._stations.popleft()
            for passage in self._passages:
                passage.advance(layer.first_op)
            place = Place(
                group=layer,
                current=self.current.fork(),
                dense=self.dense.fork(),
                seed=self.setting.seed,
                metric=self.setting.metric,
                inputs=self._inputs if _linear(layer) else None,
            )
            assert self._refit is not None
            models, self.refitted[layer.name], passed = self._refit(place, self.models)
            self.take_over(models)
            self.skip_to(passed)

    def take_over(self, models: Sequence[Tensors]) -> None:
        """Newly fitted tensors of the model and its versions."""
        old = self.current.tensors
        self.rewritten |= {name for name, x in models[0].items() if x is not old[name]}
        self._hold(models)

    def apply(
        self, group: Group, kept: Sequence[int], models: Sequence[Tensors], start: Run | None
    ) -> None:
        """Take over newly fitted tensors of the model and its versions; switch other units off.

        start: the pruned run before it saw how many units the group has, where anything does.
        """
        self.take_over(models)
        self.settle(group, kept, switched_off(group, kept, self.models), start)

    def settle(
        self, group: Group, kept: Sequence[int], models: Sequence[Tensors], start: Run | None
    ) -> None:
        """Go on with models whose other units are switched off already."""
        self._hold(models)
        keep = keep_mask(group, kept)
        self.current.override.update(overrides(self.current.programs[0], [(group, keep)]))
        if start is not None and self.pruned:
            start.tensors, start.override = self.current.tensors, self.current.override
            self.current.envs, self.current.position = start.envs, start.position
        self._note_removed(group, kept)
        self._undecided.pop(group.name, None)

    def _hold(self, models: Sequence[Tensors]) -> None:
        """Keep new tensors of the model and its versions; what they share stays shared."""
        known = {id(x) for tensors in self.models for x in tensors.values()}
        kept: dict[int, Tensor] = {}
        for tensors in models:
            for x in tensors.values():
                if id(x) not in known and id(x) not in kept:
                    kept[id(x)] = self._keep(x)
        self.current.tensors, *self.versions[:] = [
            {name: kept.get(id(x), x) for name, x in tensors.items()} for tensors in models
        ]

    def skip_to(self, passed: Run | None) -> tuple[int, ...]:
        """Go on from where a fork of the dense run has got to, unless a group is waiting before.

        Where it stopped on the way; empty if the dense run stays.
        """
        if passed is None:
            return ()
        ops = [c.use.op for g in self._undecided.values() for c in g.consumers]
        ops += [layer.first_op for layer in list(self._stations)[:1]]
        if passed.position <= min(ops, default=passed.position):
            self.dense.go_on_from(passed)
            return tuple(passed.trail)
        return ()

    def finish(self) -> tuple[str, ...]:
        """Refit what is left; the BatchNorm statistics that were re-estimated, by name."""
        self._refit_before(len(self.current.programs[0].ops))
        if not self.current.renew:
            return ()
        self.current.advance(len(self.current.programs[0].ops))
        renewed = tuple(name for pair in self.current.renew.values() for name in pair)
        new = {name: self.current.tensors[name] for name in renewed}
        self.versions = [{**version, **new} for version in self.versions]
        return renewed

    def _note_removed(self, group: Group, kept: Sequence[int]) -> None:
        """Mark the inputs of the consumers that go: the same layer may read other groups too."""
        keep = torch.as_tensor(keep_mask(group, kept))
        for consumer in group.consumers:
            units = torch.as_tensor(consumer.columns)
            off = (units >= 0) & ~keep[units.clamp(min=0)]
            op = consumer.use.op
            self._removed[op] = self._removed[op] | off if op in self._removed else off


def _linear(layer: Group) -> bool:
    """Whether a station's layer reads rows, as they are."""
    return window(layer.program.ops[layer.first_op]) is None


def switched_off(group: Group, kept: Sequence[int], models: Sequence[Tensors]) -> list[Tensors]:
    """Versions of a model with removed units zeroed; they go on sharing tensors that they share."""
    keep = keep_mask(group, kept)
    zeroed: dict[int, Tensor] = {}  # by the identity of the tensor before
    results = []
    for tensors in models:
        new = dict(tensors)
        zero(new, group, keep)
        for name in {slot.tensor for slot in group.slots}:
            new[name] = zeroed.setdefault(id(tensors[name]), new[name])
        results.append(new)
    return results
