"""All options of `prune`, `forecast` and `guarantees`: each is declared here, once.

This table says what they are called, what they mean and how text says them. It is read by the
command line before anything heavy is: neither PyTorch nor NumPy is imported for it. What the
options ask for together is made of them in `subprune.options.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from subprune.budget.goal import Part, Shares
from subprune.keywords import Option, option, options_of, same, stand_in
from subprune.messages import Message
from subprune.options.names import (
    AllocatorName,
    BatchNorm,
    FitName,
    Patches,
    SelectorName,
    TargetName,
)
from subprune.options.texts import (
    as_amount,
    as_budgets,
    as_count,
    as_list,
    as_part,
    as_shares,
    as_views,
    checked_shares,
    class_names,
    method_name,
)

if TYPE_CHECKING:
    from subprune.budget.demand import Allocator
    from subprune.fit.fit import Fit
    from subprune.methods import Method
    from subprune.plan import GroupPlan
    from subprune.progress import Step
    from subprune.select.selector import Answer, Selector, View
    from subprune.statistics.target import Target
else:  # in signatures, where the names of these classes are enough
    Allocator = stand_in("subprune.budget.demand.Allocator")
    Fit = stand_in("subprune.fit.fit.Fit")
    Method = stand_in("subprune.methods.Method")
    GroupPlan = stand_in("subprune.plan.GroupPlan")
    Step = stand_in("subprune.progress.Step")
    Answer = stand_in("subprune.select.selector.Answer")
    Selector = stand_in("subprune.select.selector.Selector")
    View = stand_in("subprune.select.selector.View")
    Target = stand_in("subprune.statistics.target.Target")

__all__ = ["OPTIONS", "GuaranteeRows", "Rows"]

_GOAL = "Goal (one of these, or several limits at once)"
_MEASURE = "What the goal is measured on"
_HOW = "How units are chosen and weights fitted"
_WHERE = "Which groups"
_DATA = "Data"
_WORK = "The work itself"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Rows:
    """What one call asks for.

    A field is one option: its default, what it does, and how text says it. To add one, add a
    field; signature, flags, keys, the reference page and the call in the report follow.
    """

    # ---- the goal -----------------------------------------------------------------------------
    compression: float | None = option(None, "parameters before / after", panel=_GOAL)
    speedup: float | None = option(None, "FLOPs before / after", panel=_GOAL)
    params: str | float | None = option(
        None,
        "parameters left: a number, or a share such as 50%",
        panel=_GOAL,
        metavar="AMOUNT",
        parse=as_amount,
    )
    flops: str | float | None = option(
        None,
        "FLOPs left for one input: a number, or a share such as 50%",
        panel=_GOAL,
        metavar="AMOUNT",
        parse=as_amount,
    )
    latency: str | float | None = option(
        None,
        "milliseconds that a call on the first batch may take, or a share such as 60%; met by "
        "cutting candidates and timing them here and now",
        panel=_GOAL,
        metavar="AMOUNT",
        parse=as_amount,
    )
    keep: Shares | str | None = option(
        None,
        "fraction of the units of every group to keep, 0.5 or 50%; or fractions by kind (head, "
        "neuron, channel, stream), name or wildcard: the most specific one counts, and groups that "
        "none of them names stay whole, unless * gives a fraction for the rest",
        panel=_GOAL,
        metavar="SHARE or NAME=SHARE",
        several=True,
        parse=as_shares,
        take=checked_shares,
        show=lambda keep: dict(keep) if isinstance(keep, Mapping) else keep,
    )
    budgets: Mapping[str, int] | None = option(
        None,
        "units to keep, by group; groups that are not named stay whole",
        panel=_GOAL,
        metavar="GROUP=UNITS",
        several=True,
        parse=as_budgets,
        show=dict,
    )
    of: Part = option(
        "model",
        Message(
            "what {compression:name}, {speedup:name}, {params:name} and {flops:name} are measured "
            "on: the whole model, or its blocks, which are everything but the tables of embeddings "
            "and positions and the layers that make the output"
        ),
        panel=_MEASURE,
    )
    uniform: bool = option(
        False,
        "repeated layers keep the same number of units, so that one number in a config can "
        "describe them; of a transformers model only what its config can express is pruned, and "
        "the result loads with from_pretrained",
        panel=_WHERE,
    )
    streams: bool = option(
        False,
        "also prune residual streams, which everything reads; by default only those that are "
        "named explicitly",
        panel=_WHERE,
    )
    # ---- how ----------------------------------------------------------------------------------
    method: str | Method | Callable[[View], Answer] = option(
        "auto",
        "preset of the four choices below; `subprune methods` lists them; in Python also a function "
        "that ranks the units of a group, as one given to subprune.method",
        panel=_HOW,
        metavar="NAME",
        show=method_name,
    )
    target: TargetName | Target | None = option(
        None,
        f"what a layer should reproduce, and from which inputs: {', '.join(get_args(TargetName))}; by "
        "default the method's own",
        panel=_HOW,
        **as_part("target"),
    )
    selector: SelectorName | Selector | None = option(
        None,
        f"how units are chosen: {', '.join(get_args(SelectorName))}; by default the method's own",
        panel=_HOW,
        **as_part("selector"),
    )
    fit: FitName | Fit | None = option(
        None,
        f"what the remaining weights become: {', '.join(get_args(FitName))}; by default the method's own",
        panel=_HOW,
        **as_part("fit"),
    )
    allocate: AllocatorName | Allocator | None = option(
        None,
        f"how the goal is divided among the groups: {', '.join(get_args(AllocatorName))}; by default the "
        "method's own, or balanced",
        panel=_HOW,
        **as_part("allocate"),
    )
    ridge: float | None = option(
        None,
        "how strongly new weights are drawn toward the old ones, relative to the inputs' mean "
        "energy; 0 is the paper's plain fit; by default chosen on held-out inputs",
        panel=_HOW,
    )
    folds: int | None = option(
        None,
        Message(
            "parts into which the inputs are divided, each judged by a model fitted to the "
            "others; by default 4, or 1 with {ridge=}, where nothing is held out",
            ridge=0,
        ),
        panel=_HOW,
    )
    drift: bool | None = option(
        None,
        "also refit the layers that lose no input, but whose inputs change because earlier layers "
        "were cut, so that they give what they gave in the dense model; by default as the method says",
        panel=_HOW,
    )
    refine: int = option(
        0,
        "Gauss–Newton steps, at most, on the layers that make a group's units, with those that "
        "read them fitted again after each; 4 is a good number for 512 inputs",
        panel=_HOW,
    )
    epsilon: float | None = option(
        None, "between 0 and 1: stochastic greedy, for methods that select greedily", panel=_HOW
    )
    patches: Patches = option("all", "which patches of each image are looked at", panel=_HOW)
    batchnorm: BatchNorm = option(
        "keep",
        "BatchNorm statistics: kept, re-estimated on the data at the end (recalibrate), or layer "
        "by layer on the way (sequential), so that later layers are pruned and reweighted for what "
        "the smaller model computes",
        panel=_HOW,
    )
    # ---- other data, and where curves are kept ------------------------------------------------
    train_data: Any = option(
        None,
        "labelled pool that layer-greedy-fs-fd draws from",
        panel=_DATA,
        metavar="DATA",
        planned=False,
        variable=True,
    )
    verify_data: Any = option(
        None,
        "labelled data for the equal-accuracy rule, and for the accuracy in the report",
        panel=_DATA,
        metavar="DATA",
        planned=False,
        variable=True,
    )
    cache: str | Path | None = option(
        None,
        "folder for accuracy curves, which are reused for other goals and after an interruption",
        panel=_WORK,
        metavar="FOLDER",
        parse=Path,
        planned=False,
        show=str,
    )
    checkpoint: str | Path | None = option(
        None,
        "folder for finished steps: the same call, stopped at any time, resumes after the last "
        "finished group; the folder stays until you delete it. The command line uses "
        "OUTPUT/checkpoint, until the result is written",
        panel=_WORK,
        metavar="FOLDER",
        parse=Path,
        planned=False,  # changes nothing in the result
        show=str,
    )
    # ---- which groups, and how wide -----------------------------------------------------------
    round_to: int | None = option(
        None,
        Message(
            "keep multiples of this number of units, 8 or 16 suit most hardware; by default 1, or "
            "8 with {latency=}"
        ),
        panel=_WHERE,
    )
    only: Any = option(
        None,
        "prune these groups and no others: names of groups or modules, wildcards such as "
        "layer*.conv1, patterns such as re:conv, in Python also module types and modules; a "
        "container stands for all layers in it, and residual streams are pruned only if named "
        "explicitly",
        panel=_WHERE,
        metavar="NAME",
        several=True,
        parse=list,
        take=as_list,  # a generator is read once
        show=class_names,
    )
    ignore: Any = option(
        None,
        Message("leave these alone; given like {only:name}"),
        panel=_WHERE,
        metavar="NAME",
        several=True,
        parse=list,
        take=as_list,
        show=class_names,
    )
    # ---- inputs -------------------------------------------------------------------------------
    n_samples: int | str | None = option(
        512,
        Message(
            "how many inputs are used, drawn at random from all of the data by {seed:name}, or the "
            "first of a stream; all, in their own order, if there are no more; in Python None means "
            'all; "4096 tokens": as many inputs as contain that many tokens, not counting padding'
        ),
        panel=_DATA,
        metavar="NUMBER",
        parse=as_count,
    )
    augment: Any = option(
        None,
        "also calibrate on further views of all images: mirror (left and right exchanged), crop "
        "(shifted by a few pixels); for images whose meaning this does not change",
        panel=_DATA,
        metavar="VIEW",
        several=True,
        parse=list,
        take=as_views,
    )
    forward: Callable[[Any], Any] | None = option(
        None,
        "function from an item of the data to the model's arguments",
        panel=_DATA,
        flag=False,
        planned=False,
        variable=True,
    )
    seed: int = option(0, "seed for everything random", panel=_DATA)
    # ---- the work itself ----------------------------------------------------------------------
    threads: int | None = option(
        None,
        "how many cores are used; by default as many as PyTorch would use, but no more than the "
        "process may run on or its container is granted",
        panel=_WORK,
        planned=False,  # changes the result by rounding, if at all
    )
    distributed: bool | None = option(
        None,
        "in a torch.distributed job, such as torchrun starts: share the work among its processes, "
        "each of which makes the same call; False: this process alone; by default, if there is a job",
        panel=_WORK,
        planned=False,  # changes the result by rounding, if at all
    )
    time_calls: bool | None = option(
        None,
        "measure both models' latency on the first batch, or not at all; by default on one input, "
        "or, with a latency as the goal, on the first batch",
        panel=_WORK,
        planned=False,  # changes nothing in the result
    )
    progress: bool | Callable[[Step], None] | None = option(
        None,
        "True, False, a function that gets every step, or None for a bar in a terminal or notebook",
        panel=_WORK,
        flag=False,
        planned=False,
        repeated=False,
        variable=True,
    )

    callback: Callable[[GroupPlan], Any] | None = option(
        None,
        "function that is called with what was decided, group by group; an error that it raises "
        "stops the work, and leaves the model you passed in unchanged",
        panel=_WORK,
        flag=False,
        planned=False,
        repeated=False,
        variable=True,
    )


OPTIONS: Mapping[str, Option] = options_of(Rows)
"""The table of options, by name, in the order of the signature."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GuaranteeRows:
    """What `subprune.guarantees` is to prove, and for which selection."""

    target: TargetName = option(
        "layer",
        "the model that is looked at: the dense one, or one that is pruned group after group on "
        "the way, which needs one share, or budgets",
    )
    keep: float | Sequence[float] = option(
        (0.25, 0.5, 0.75), "shares of the units of every group for which bounds are given"
    )
    budgets: Mapping[str, int] | None = same(Rows, "budgets")
    only: Any = same(Rows, "only")
    ignore: Any = same(Rows, "ignore")
    patches: Patches = same(Rows, "patches")
    fit: FitName | Fit | None = same(Rows, "fit")
    ridge: float | None = same(Rows, "ridge")
    folds: int | None = same(Rows, "folds")
    drift: bool | None = same(Rows, "drift")
    n_samples: int | str | None = same(Rows, "n_samples")
    forward: Callable[[Any], Any] | None = same(Rows, "forward")
    seed: int = same(Rows, "seed")
    double: bool = option(
        True,
        "compute in float64, on a copy; otherwise in the model's own precision, with wider margins "
        "for rounding",
    )
    progress: bool | Callable[[Step], None] | None = same(Rows, "progress")
