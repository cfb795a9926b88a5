"""Several processes that share one call: the ranks of a `torch.distributed` job.

Every rank makes the same call with the same model and data, runs its own part of the inputs, and
goes through the same steps in the same order. They meet in two ways: sums over rows become sums
over the rows of all ranks (`Ranks.sum`), and pieces of work that every rank could do are done by
one each and handed to all (`Ranks.each`). A process without others is a `Ranks` too, in which
nothing is exchanged.

Before an exchange every rank says in the job's store that it has come, and a thread of each says
every second that it is alive: so a rank that died, hangs or failed is named by the others, and
nobody waits in the exchange itself.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from subprune.errors import OptionError, RankError
from subprune.messages import Message

__all__ = ["ALONE", "SILENCE", "Ranks", "sharing"]

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

SILENCE = 30.0
"""Seconds after which a rank that has given no sign of life counts as dead."""

JOINING = 300.0
"""Seconds that ranks wait for each other at the start of a call."""

_BEAT = 1.0  # seconds between two signs of life
_PARCEL = 2**21  # numbers that are summed at once
_PAUSES = (0.0002, 0.02)  # seconds between two looks at who is there: the first, and the longest


class Ranks:
    """Those who share a call: here one process alone."""

    rank, count = 0, 1
    bytes = 0
    """What this rank has sent to others."""
    exchanges = 0

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace float64 tensors, or views, by their sums over all ranks."""

    def largest(self, tensors: Sequence[Tensor]) -> None:
        """Replace float64 tensors by their largest values on any rank."""

    def share(self, mine: Any) -> list[Any]:
        """What every rank has, by rank: tensors, numbers and words, and lists and dicts of them."""
        return [mine]

    def each(self, work: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
        """The work on every item, in order, each done by one rank; the same rank for the same
        place in the list. What it gives can be shared.
        """
        done = {i: work(x) for i, x in enumerate(items) if i % self.count == self.rank}
        outcomes: dict[int, Outcome] = {}
        for part in self.share(done):
            outcomes.update(part)
        return [outcomes[i] for i in range(len(items))]

    def first(self, work: Callable[[], Outcome]) -> Outcome:
        """What the first rank gets from work that may come out otherwise elsewhere."""
        told: Outcome = self.share(work() if self.rank == 0 else None)[0]
        return told

    def agree(self, digest: Callable[[], str], what: str) -> None:
        """See that all ranks have the same; what: for the message."""
        if self.count == 1:
            return
        every = self.share(digest())
        others = [str(rank) for rank, other in enumerate(every) if other != every[0]]
        if others:
            verb = "has" if len(others) == 1 else "have"
            raise RankError(
                f"rank {', '.join(others)} of the job {verb} another {what} than rank 0; give every "
                "rank the same model, data and options, on machines with the same libraries"
            )


ALONE = Ranks()
"""A process without others."""


@contextlib.contextmanager
def sharing(wanted: bool | None) -> Iterator[Ranks]:
    """Those who share the call: all ranks of the process's job; without one, the process alone.

    wanted: False: alone in any case; True: refused without a job. What ends the call of one rank
    ends that of all.
    """
    inside = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if wanted and not inside:
        why = (
            "{distributed=} is for a torch.distributed job of several processes, and there is none "
            "here; start one with torchrun, or omit it"
        )
        raise OptionError(Message(why, distributed=True))
    if wanted is False or not inside:
        yield ALONE
        return
    job = _Job()
    try:
        yield job
    except BaseException as error:
        job.fail(error)
        raise
    finally:
        job.leave()


_calls = itertools.count()


class _Job(Ranks):
    """The ranks of a `torch.distributed` job, from one call's start to its end."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore(f"subprune/{next(_calls)}", store)
        self._step, self._checked = 0, 0.0
        self._beats: dict[int, tuple[bytes, float]] = {}  # the last of each rank, and when
        self._ended = threading.Event()
        self._store.set(f"beat/{self.rank}", "0")
        self._store.set(f"at/{self.rank}", "0 joined")
        self._thread = threading.Thread(target=self._beat, name="subprune-beat", daemon=True)
        self._thread.start()
        self._group: Any = None
        try:
            self._wait_for_all()
            with self._exchange("connect"):  # nobody waits there for a rank that is not to come
                limit = timedelta(seconds=2 * SILENCE)
                self._group = dist.new_group(backend="gloo", timeout=limit)
        except BaseException as error:
            self.fail(error)
            self.leave()
            raise

    def leave(self) -> None:
        """No thread and no connection stays."""
        self._ended.set()
        self._thread.join()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def fail(self, error: BaseException) -> None:
        """Tell the others what has ended the call here; they may be waiting."""
        if not isinstance(error, RankError):
            with contextlib.suppress(Exception):
                text = f"{type(error).__name__}: {error}"
                self._store.set(f"failed/{self.rank}", text)

    # ---- who is there ----------------------------------------------------------------------------

    def _beat(self) -> None:
        """Say that this rank is alive, until the call ends."""
        for number in itertools.count(1):
            if self._ended.wait(_BEAT):
                return
            with contextlib.suppress(Exception):  # which the main thread meets as well
                self._store.set(f"beat/{self.rank}", str(number))

    def _wait_for_all(self) -> None:
        """Until every rank has begun the same call."""
        started, missing = time.monotonic(), list(range(self.count))
        while missing:
            missing = [rank for rank in missing if not self._store.check([f"at/{rank}"])]
            if missing and time.monotonic() - started > JOINING:
                raise RankError(
                    Message(
                        "rank {missing} of the job has not begun the same call within {seconds:.0f} "
                        "seconds; call it on all {count} ranks, or with {distributed=} on one",
                        missing=", ".join(map(str, missing)),
                        seconds=JOINING,
                        count=self.count,
                        distributed=False,
                    )
                )
            time.sleep(_PAUSES[1] if missing else 0)

    def _meet(self, what: str) -> None:
        """Wait until all ranks are about to do this; one that is dead, or has failed, is named."""
        self._step += 1
        self._store.set(f"at/{self.rank}", f"{self._step} {what}")
        self._checked, pause = time.monotonic(), _PAUSES[0]
        missing = [rank for rank in range(self.count) if rank != self.rank]
        while missing:
            behind = []
            for rank in missing:
                step, _, doing = self._store.get(f"at/{rank}").decode().partition(" ")
                if int(step) < self._step:
                    behind.append(rank)
                elif int(step) == self._step and doing != what:
                    raise RankError(
                        f"the ranks of the job went different ways: rank {rank} is about to "
                        f"{doing}, rank {self.rank} to {what}; give every rank the same model, "
                        "data and options"
                    )
            missing = behind
            if missing:
                time.sleep(pause)
                pause = min(2 * pause, _PAUSES[1])
                self._look_after(missing)

    def _look_after(self, ranks: Sequence[int]) -> None:
        """Every now and then: raise an error if one of these ranks has failed, or is silent."""
        now = time.monotonic()
        if now - self._checked < _BEAT / 2:
            return
        self._checked = now
        for rank in ranks:
            if self._store.check([f"failed/{rank}"]):
                text = self._store.get(f"failed/{rank}").decode()
                raise RankError(f"rank {rank} of the job has ended the call: {text}")
            beat = self._store.get(f"beat/{rank}")
            before, since = self._beats.get(rank, (b"", now))
            self._beats[rank] = (beat, since if beat == before else now)
            if now - self._beats[rank][1] > SILENCE:
                raise RankError(
                    f"rank {rank} of the job is dead or hangs: it has given no sign of life for "
                    f"{SILENCE:.0f} seconds; start the job again"
                )

    @contextlib.contextmanager
    def _exchange(self, what: str) -> Iterator[None]:
        """Meet, then exchange; a failure is blamed on the rank that failed or fell silent."""
        try:
            self._meet(what)
            self.exchanges += 1
            yield
        except RankError:
            raise
        except RuntimeError as error:  # of the connection, or of the store
            raise self._blame(error) from error

    def _blame(self, error: RuntimeError) -> RankError:
        """Wait until it is known whose fault a broken connection is."""
        others = [rank for rank in range(self.count) if rank != self.rank]
        until = time.monotonic() + SILENCE + 2 * _BEAT
        while time.monotonic() < until:
            try:
                self._look_after(others)
            except RankError as missing:
                return missing
            except RuntimeError:
                return RankError(
                    "the store of the job is gone, and with it, in most jobs, rank 0 that kept it "
                    f"({_line(error)}); start the job again"
                )
            time.sleep(_BEAT / 4)
        return RankError(f"the connection between the ranks of the job failed: {_line(error)}")

    # ---- what is exchanged -----------------------------------------------------------------------

    def sum(self, tensors: Sequence[Tensor]) -> None:
        self._reduce(tensors, dist.ReduceOp.SUM, "sum")

    def largest(self, tensors: Sequence[Tensor]) -> None:
        self._reduce(tensors, dist.ReduceOp.MAX, "compare")

    def _reduce(self, tensors: Sequence[Tensor], operation: Any, word: str) -> None:
        with self._exchange(f"{word} {sum(x.numel() for x in tensors)} numbers"):
            for parcel in _parcels(tensors):
                group, device = self._way(parcel[0].device)
                numbers = torch.cat([x.to(device).reshape(-1) for x in parcel])
                dist.all_reduce(numbers, operation, group)
                for x, new in zip(parcel, numbers.split([x.numel() for x in parcel]), strict=True):
                    x.copy_(new.reshape(x.shape))
                # Parts go round once to be summed, and once more as sums.
                self.bytes += 2 * (self.count - 1) * numbers.nbytes // self.count

    def _way(self, device: torch.device) -> tuple[Any, torch.device]:
        """The group that carries numbers of a device, and where they must lie for it."""
        if device.type == "cuda" and "nccl" in dist.get_backend_config():
            return None, device
        return self._group, torch.device("cpu")

    def share(self, mine: Any) -> list[Any]:
        file = io.BytesIO()
        torch.save(mine, file)
        content = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
        with self._exchange("share"):
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            dist.all_gather(sizes, torch.tensor([len(content)]), self._group)
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(content)] = content
            every = [torch.empty_like(padded) for _ in range(self.count)]
            dist.all_gather(every, padded, self._group)
            self.bytes += (self.count - 1) * longest
        parts = [x[: int(size)].numpy().tobytes() for x, size in zip(every, sizes, strict=True)]
        return [torch.load(io.BytesIO(part), weights_only=True) for part in parts]


def _parcels(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors, large ones row by row, in parcels that are summed at once."""
    parcel: list[Tensor] = []
    held = 0
    for tensor in tensors:
        rows = max(1, _PARCEL * len(tensor) // max(1, tensor.numel())) if tensor.ndim else 1
        for piece in tensor.split(rows) if tensor.ndim else [tensor]:
            if parcel and held + piece.numel() > _PARCEL:
                yield parcel
                parcel, held = [], 0
            parcel.append(piece)
            held += piece.numel()
    if parcel:
        yield parcel


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
