"""Explain a wrong tap: try known bugs in the operations just before it, on the engine's own tensors."""

import contextlib
import functools
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from refsd.causes.generic.description import describe
from refsd.causes.generic.fitted_causes import fitted_causes, is_gap
from refsd.causes.generic.other_shapes import other_shape
from refsd.causes.generic.solved_numbers import is_plain, shown, solved
from refsd.causes.model.following import Reached, Segment
from refsd.causes.model.mutants import MUTANTS, Change
from refsd.causes.model.observed import Call, Observed
from refsd.causes.model.rearranged import MODULATED, UNFIT, joined_otherwise, left_out, parts_otherwise
from refsd.causes.operation.unlisted import KEPT, explaining
from refsd.causes.stage.candidates import numbers
from refsd.golden.explanation import Nearest, Scene
from refsd.golden.judge import Mutant
from refsd.golden.metrics import channel_axis
from refsd.golden.operations import OPERATIONS
from refsd.golden.search_cuts import TimeLimit
from refsd.golden.taps import measure_taps
from refsd.golden.verdict import judge
from refsd.networks.bugs import all_skipped, of_blocks
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, Numerics
from refsd.numerics.tensor import StoredTensor

# Of other weights in a wrong operation, bugs of blocks before it, and bugs for the nearest one: so many are tried.
_WEIGHTS, _BLOCK_BUGS, _NEAREST = 200, 32, 60
_HEADS = re.compile(r"\b(attention|rope)(\.\d+)?$")
# Numbers that a tap must have to be known again.
_KNOWN_AGAIN = 16
# An unscaled softmax rounds more than the right one: attention's own bug may not fit the bound that this does.
_OF_SCALE = re.compile(r"^[qk] is multiplied by sqrt\(D\) = .*")
# What only says which operand an addition lacks: a bug of the whole model may say why.
_VAGUE = "b left out: zeros stand for it"
# Operations between two taps, more of which are a long way.
_LONG = 6
# CPU seconds that the known bugs leave for the others.
_OTHERS, _UNLIMITED = 11.0, TimeLimit(math.inf)


class Place(NamedTuple):
    """A wrong tap and its surroundings.

    tap:      name of the wrong tap
    actual:   the engine's values
    segment:  the operations that lead to the tap
    run:      arithmetic, change of inputs or weights, other values of taps -> the reference's value of the tap
              from the engine's earlier taps; None if the change makes no difference
    spread:   -> RMS error of each element in honest runs with random roundings
    weights:  the component's
    numerics: declared by the engine
    known:    the right results of the operations up to the tap; None where they are not kept
    earlier:  the engine's taps before this one, the latest first
    later:    those behind it
    others:   -> what every tap and output should be, in float64; what is made of this tap, of its right values
    again:    the taps of the other calls of this layer or operation
    params:   the component's
    unseen:   -> what the reference makes of the engine's taps between them and this one, the latest first
    read:     -> what its earlier layers read, which no tap need have, the latest first
    """

    tap: str
    actual: np.ndarray
    segment: Segment
    run: Callable[..., np.ndarray | None]
    spread: Callable[[], np.ndarray]
    weights: Mapping[str, StoredTensor]
    numerics: Numerics
    known: Sequence[np.ndarray | None] = ()
    earlier: Mapping[str, np.ndarray] = MappingProxyType({})
    later: Mapping[str, np.ndarray] = MappingProxyType({})
    others: Callable[[], Mapping[str, np.ndarray]] = dict
    again: Collection[str] = ()
    params: Mapping[str, Any] = MappingProxyType({})
    unseen: Callable[[], Mapping[str, np.ndarray]] = dict
    read: Callable[[], Mapping[str, np.ndarray]] = dict

    def explain(
        self,
        of_outputs: Callable[..., list[str]] = lambda _: [],
        limit=_UNLIMITED,
        held: Callable[[list[str]], list[str]] = lambda bugs: bugs,
    ) -> list[str]:
        """Return the causes, the likeliest first.

        Tries in turn: known bugs, precisions and other weights in the operations here; known bugs of whole models;
        bugs that no page lists; causes of the outputs; causes fitted to the error.

        of_outputs: known bugs that change the tap -> those that explain the outputs
        limit:      of the search here
        held:       bugs that explain the tap -> the same, those that the outputs contradict behind the others
        """
        runs = self._runs()
        if runs is None:
            right = self.run(Arithmetic(FLOAT64), Change())
            shape = "" if right is None else other_shape(self.actual, right)
            return held([*self._of_another_size(limit)]) or ([shape] if shape else [])
        truth, honest = runs
        scene = self._scene(truth, honest)
        actual = scene.actual["y"]
        suspects, tried, changing = {}, {}, set[str]()
        room = KEPT

        def rerun(change: Change) -> np.ndarray | None:
            return self.run(Arithmetic(self.numerics), change)

        blocks, given = [*itertools.islice(of_blocks(rerun), _BLOCK_BUGS)], [*self.earlier, *self.later, self.tap]
        there = {block for block, _ in blocks if any(f"{name}.".startswith(f"{block}.") for name in given)}
        gone = [bug for block, bug in blocks if block not in there and bug.name.endswith("skipped")]
        nearby = [bug for _, bug in blocks if bug not in gone]
        if len(gone) > 1:
            gone.append(all_skipped({block for block, _ in blocks} - there))
        known = [self._operations(), self._changed(nearby), self._changed(MUTANTS)]
        if len(self.segment.ops) > _LONG:  # the place tells little, and each of the operations has its bugs
            known = [*known[1:], known[0]]
        joins = self._changed(joined_otherwise(rerun))
        for candidates in (self._changed(gone), *known, joins, self._of_numbers(truth)):
            for name, y in limit.within(candidates, _OTHERS):
                if y.size != truth.size:
                    continue
                near = {"y": np.reshape(y, truth.shape).astype(np.float64)}
                if not np.array_equal(near["y"], honest):
                    changing.add(name)
                if room > near["y"].nbytes and name not in tried:
                    room -= near["y"].nbytes
                    tried[name] = near["y"]
                if scene.explained_by(near) and self._agrees(near["y"], near["y"] + (honest - truth)):
                    suspects.setdefault(name, near)
            if suspects.keys() - {_VAGUE}:
                break
        if suspects:
            return held(scene.nearest({name: y for name, y in suspects.items() if name != _VAGUE} or suspects))

        def explains(wrong: np.ndarray) -> bool:
            near = wrong.reshape(truth.shape)
            return scene.explained_by({"y": near}) and self._agrees(near, near + (honest - truth))

        taps = self._other_taps(truth)
        moved = next((name for name, y in taps.items() if y.size == truth.size and explains(y)), None)
        if moved is not None:
            call = moved in self.again
            return [f"it is the result of another call: {moved}" if call else f"it is what {moved} should be"]
        gap = is_gap(actual, truth, honest, self._channels(truth))
        for unlisted in limit.within(self._unlisted(gap)):
            of_size = ((name, y) for name, y in limit.within(unlisted) if y.size == truth.size)
            if others := explaining(of_size, explains, tried):
                nearest = scene.nearest({name: {"y": y.reshape(truth.shape)} for name, y in others.items()})
                return [*dict.fromkeys(_OF_SCALE.sub("scale missing", name) for name in others if name in nearest)]
        tried = {name: y.reshape(truth.shape) for name, y in tried.items()}
        return of_outputs(changing) or fitted_causes(actual, truth, honest, self._channels(truth), tried)

    def _channels(self, truth: np.ndarray) -> int:
        """Return the axis of channels: the last of heads, [N, tokens, heads, channels]."""
        return -1 if _HEADS.search(self.tap) else channel_axis(truth)

    def _other_taps(self, truth: np.ndarray) -> dict[str, np.ndarray]:
        """Return what the other taps and outputs should be, if this one has enough numbers to be known again."""
        return {
            name: np.asarray(y, np.float64)
            for name, y in (self.others() if truth.size >= _KNOWN_AGAIN else {}).items()
            if name != self.tap and y.dtype.kind == "f" and y.ndim and np.ptp(y) > 0
        }

    def _unlisted(self, gap: bool) -> Iterator[Iterable[tuple[str, np.ndarray]]]:
        """Yield groups of (bug, result): the last operation with another input, or with a bug that no page lists.

        Then those before it with other numbers as their parameters.
        gap: as refsd/causes/operation/unlisted.py takes it; no other tap is an input then
        """
        last = self.segment.last - 1
        if gap:
            yield from (call.unlisted(self.actual, gap) for call in (self._call(last) if self.segment.ops else ()))
            return
        every = [*self.calls()]
        calls = [call for at, call in every if at == last]
        yield left_out([(at, call) for at, call in every if at < last], self.moved)
        yield self._unchanged(calls)
        otherwise = functools.partial(parts_otherwise, self.run, every, near := {**self.unseen(), **self.earlier})
        modulated = not {*self.segment.ops}.isdisjoint(MODULATED)
        if modulated or not calls:
            yield otherwise()
        elsewhere = {
            "the layers in between are skipped": {**self.earlier, **self.read()},
            "that layer should come behind this one": self.later,
            "the dump has not that tensor; the reference computed it": self.unseen(),
        }
        self.run(every_rope := Observed(self.numerics), Change())
        turns = [made_of for _, made_of in every_rope.angles.values()]
        for call in calls:
            parts = () if modulated else otherwise()
            yield from (call.simplest(), call.once_more(turns, near), call.from_elsewhere(elsewhere))
            yield from (parts, call.unlisted(self.actual))
        whole = self.run(Arithmetic(FLOAT64), Change())
        if whole is None or whole.size != self.actual.size:
            return
        for at, call in every:
            if at == last:
                continue

            def through(y: np.ndarray, at=at) -> np.ndarray:
                moved = self.moved(at, y)
                return np.zeros(0) if moved is None else moved

            op = self.segment.ops[at - self.segment.first]
            fitted = call.fitted(through, self.actual.reshape(whole.shape))
            yield ((f"{op} before it: {name}", moved) for name, moved in fitted)
            yield self._after(at, call.once_more(turns, near if "add" in op else {}))

    def _unchanged(self, last: Sequence[Call]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (bug, tap) for each earlier tap that the last operation does not read."""
        own = [y.values().ravel() for call in last for y in call.inputs.values()]
        for name, y in self.earlier.items():
            if y.size == self.actual.size and not any(np.array_equal(y.ravel(), x) for x in own):
                yield f"it is {name}, unchanged: what comes between is left out", y

    def _agrees(self, near: np.ndarray, noisy: np.ndarray) -> bool:
        """Return True if the tap would pass with the bug's answer as truth, by the rule of golden/taps.py.

        near:  the bug's answer
        noisy: the bug's answer plus the error of an honest run
        """
        if self._passes(near, noisy):
            return True
        return self.numerics.compute != "float64" and self._passes(near, noisy, {"y": self.spread()})

    def _passes(
        self, near: np.ndarray, noisy: np.ndarray, spreads: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> bool:
        actual, losses = {"y": self.actual.reshape(near.shape)}, {"y": self.segment.loss}
        return judge(measure_taps(actual, {"y": near}, {"y": noisy}, self.numerics, losses, spreads)).passed

    def nearest(self) -> Nearest | None:
        """Return the known bug of the operations here that removes most of an error which none explains."""
        runs = self._runs()
        if runs is None:
            return None
        wrong = itertools.islice(self._operations(), _NEAREST)
        shaped = ((name, {"y": np.reshape(y, runs[0].shape)}) for name, y in wrong if y.size == runs[0].size)
        return self._scene(*runs).nearest_cause(shaped)

    def _scene(self, truth: np.ndarray, honest: np.ndarray) -> Scene:
        size = float(np.sqrt(np.mean(truth**2))) or 1.0
        return Scene({"y": self.actual.reshape(truth.shape)}, {"y": truth}, {"y": honest}, {"y": size})

    def describe(self) -> list[str]:
        """Return phrases on how the tap differs from the truth, the surest first."""
        runs = self._runs()
        return [] if runs is None else describe(self.actual.reshape(runs[0].shape), *runs, self._channels(runs[0]))

    def _runs(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the tap in float64 and under the engine's numerics; None if they cannot be compared with it."""
        truth, honest = (self.run(Arithmetic(numerics), Change()) for numerics in (FLOAT64, self.numerics))
        if truth is None or honest is None or self.actual.size != truth.size:
            return None
        return (truth, honest) if np.isfinite(truth).all() else None

    def calls(self) -> Iterator[tuple[int, Call]]:
        """Yield (index, call) for the operations between this tap and the one before it, the last first.

        Their inputs are the reference's, computed from the engine's earlier taps.
        """
        for at in reversed(range(self.segment.first, self.segment.last)):
            yield from ((at, call) for call in self._call(at))

    def _call(self, at: int) -> list[Call]:
        """Return the operation of this index; none if it has no page."""
        calls: list[Call] = []

        def take(call: Call) -> None:
            calls.append(call)
            raise Reached

        self.run(Observed(self.numerics, at=at, instead=take, before=self.known), Change())
        return calls

    def moved(self, at: int, y: np.ndarray) -> np.ndarray | None:
        """Return the tap where this operation gives another result, None if what follows cannot take it."""
        with contextlib.suppress(*UNFIT):
            return self.run(Observed(self.numerics, at=at, instead=lambda call: y, before=self.known), Change())

    def _operations(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (bug, tap) for known bugs and precisions of each operation here, and other weights in the last.

        Then for known bugs of RoPE in several of its calls: one function turns queries and keys, with one table.
        """
        tables: dict[bytes, tuple[int, list[int]]] = {}
        for at, call in self.calls():
            if call.op == "rope":
                ids = call.inputs["ids"]
                tables.setdefault(ids.values().tobytes(), (ids.shape[-2], []))[1].append(at)
            wrong = ((mutant.name, call.wrong(mutant)) for mutant in OPERATIONS[call.op].mutants)
            yield from self._after(at, ((name, y) for name, y in wrong if y is not None))
            yield from self._after(at, call.in_precisions(self.numerics))
            if at == self.segment.last - 1:
                yield from self._after(at, self._other_weights(call))
        turns = {"each rope": [at for _, own in tables.values() for at in own]}
        turns |= {f"each rope of {n} tokens": own for n, own in tables.values() if len(tables) > 1}
        for words, own in turns.items():
            for mutant in OPERATIONS["rope"].mutants if len(own) > 1 else ():
                every = Observed(self.numerics, at=own, instead=lambda call, bug=mutant: call.wrong(bug))
                moved = self.run(every, Change())
                if moved is not None:
                    yield f"{words} before it: {mutant.name}", moved

    def _after(self, at: int, answers: Iterator[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (bug, tap): propagate each wrong result of call `at` to the tap."""
        for name, y in answers:
            last = at == self.segment.last - 1
            if last and y.shape == self.actual.shape:
                yield name, y
                continue
            op = self.segment.ops[at - self.segment.first]
            moved = self.moved(at, y)
            if moved is not None:
                yield name if last else f"{op} before it: {name}", moved

    def _other_weights(self, call: Call) -> Iterator[tuple[str, np.ndarray]]:
        own = call.inputs.get("weight")
        end = next((end for end in (".weight", ".scale", ".gamma", "") if self.tap + end in self.weights), None)
        if own is None or end is None:
            return
        name = self.tap + end
        weights = (other for other in self.weights if other != name and not other.endswith(".bias"))
        like = [other for other in weights if self.weights[other].shape == own.shape]
        parts = name.split(".")
        like.sort(key=lambda other: -sum(a == b for a, b in zip(parts, other.split("."), strict=False)))
        for other in like[:_WEIGHTS]:
            bias = other.removesuffix("weight") + "bias"
            with_bias = "bias" in call.inputs and bias in self.weights
            values = self.weights[bias].values() if with_bias else None
            wrong = call.with_weights(self.weights[other].values(), values)
            yield f"it takes the weights of {other.removesuffix(end)}", wrong

    def _changed(self, mutants: Iterable[Mutant[Change]]) -> Iterator[tuple[str, np.ndarray]]:
        for mutant in mutants:
            y = self.run(mutant.change.arithmetic(self.numerics), mutant.change)
            if y is not None:
                yield mutant.name, y

    def _of_numbers(self, truth: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (bug, tap) of each number among the component's parameters, solved for."""
        actual = self.actual.reshape(truth.shape)
        for name, own, change in numbers(self.params):

            def tap(value: float, change=change) -> np.ndarray | None:
                return self.run(Arithmetic(FLOAT64), Change(params=change(value)))

            def error(v: np.ndarray, tap=tap) -> np.ndarray | None:
                y = tap(float(v[0]))
                return None if y is None or y.size != actual.size else (actual - y.reshape(truth.shape)).ravel()

            best = solved([own], error) if isinstance(own, float) and own else None
            value = own if best is None else float(shown(best[0]).partition(" ")[0])
            if value != own and is_plain(value) and (y := tap(value)) is not None:
                yield f"{name} is {value:g}, not {own:g}", y

    def _of_another_size(self, limit: TimeLimit) -> Iterator[str]:
        """Yield the known bugs of whole models with which the tap has the size and the values that it has here."""
        truth = self.run(Arithmetic(FLOAT64), Change())
        if truth is None or truth.size == self.actual.size or not np.isfinite(truth).all():
            return
        for mutant in limit.within(MUTANTS if self.actual.size >= _KNOWN_AGAIN else ()):
            with contextlib.suppress(*UNFIT):
                near = self.run(mutant.change.arithmetic(FLOAT64), mutant.change)
                if near is None or near.size != self.actual.size:
                    continue
                noisy = self.run(mutant.change.arithmetic(self.numerics), mutant.change)
                if noisy is not None and self._passes(near, noisy):
                    yield mutant.name
