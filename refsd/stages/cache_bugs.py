"""What engines got wrong with caches: each bug takes the place of the cache in the rule."""

from collections.abc import Callable, Mapping

import numpy as np

from refsd.caches.cache import Cache, relative_distance
from refsd.caches.dbcache import DBCache
from refsd.caches.easycache import EasyCache
from refsd.caches.first_block import FirstBlockCache
from refsd.caches.magcache import MagCache
from refsd.caches.taylorseer import TaylorSeer
from refsd.caches.teacache import TeaCache
from refsd.caches.ucache import UCache, window_of_steps


def _with(cache: type[Cache], **methods: Callable) -> type[Cache]:
    """Return the cache with other methods."""
    return type(f"_{cache.__name__}", (cache,), methods)


class _ComparedBefore(EasyCache):
    def decide(self, x):
        before = self.error
        skips = super().decide(x)
        return skips or (self.moved is not None and self.rate is not None and before < self.threshold)


class _LastStep(EasyCache):
    """Compare with the input of the step before, computed or not."""

    def decide(self, x):
        skips = super().decide(x)
        self.x = x if skips else self.x
        return skips


class _EachDecides(EasyCache):
    def reuse(self, call):
        self.anchor = call.condition
        if call.step == self.step:
            self.skipping = False
        return super().reuse(call)


class _OneResidual(EasyCache):
    def keep(self, call, end):
        super().keep(call, end)
        self.residuals = dict.fromkeys(("cond", "uncond"), end - call.start)


class _OutputReused(EasyCache):
    def reuse(self, call):
        y = super().reuse(call)
        return y if y is None or call.condition != self.anchor else self.v


class _NeverAdded(EasyCache):
    def decide(self, x):
        self.error = 0.0
        return super().decide(x)


class _NotAnyStreak(UCache):
    def decide(self, x):
        self.streak = 0
        return super().decide(x)


class _AlwaysReset(UCache):
    def learn(self, changed):
        super().learn(changed)
        self.error = 0.0


class _NoTrust(DBCache):
    def __init__(self, steps, threshold=0.08, Fn=8, Bn=0):
        super().__init__(steps, threshold)


class _ResidualFollows(FirstBlockCache):
    def reuse(self, call):
        y = super().reuse(call)
        if y is not None:
            self.first[call.condition] = call.signal - call.start
        return y


class _OutputsCompared(FirstBlockCache):
    def reuse(self, call):
        before = self.first.get(call.condition)
        if before is None or relative_distance(call.signal, before) > self.threshold:
            return None
        return call.signal + self.others[call.condition]

    def keep(self, call, end):
        super().keep(call, end)
        self.first[call.condition] = call.signal


class _FromTheStart(FirstBlockCache):
    def reuse(self, call):
        y = super().reuse(call)
        return y if y is None else call.start + self.others[call.condition]


class _OneForAll(FirstBlockCache):
    def reuse(self, call):
        return super().reuse(call._replace(condition="all"))

    def keep(self, call, end):
        super().keep(call._replace(condition="all"), end)


class _FarAsAll(TaylorSeer):
    """Count the distance from the first step."""

    def reuse(self, call):
        last = dict(self.last)
        self.last = dict.fromkeys(last, 0)
        y = super().reuse(call)
        self.last = last
        return y


class _PlainDifferences(TaylorSeer):
    def keep(self, call, end):
        last = dict(self.last)
        self.last = dict.fromkeys(last, call.step - 1)
        super().keep(call, end)


class _CountedFromZero(TaylorSeer):
    def computes(self, step):
        return step < self.before or step >= self.after or step % self.interval == 0


class _NoCooldown(TaylorSeer):
    def computes(self, step):
        return step < self.before or (step - self.before - 1) % self.interval == 0


class _NoSum(MagCache):
    def reuse(self, call):
        ratio, _, count = self.counts.get(call.condition, (1.0, 0.0, 0))
        self.counts[call.condition] = ratio, 0.0, count
        return super().reuse(call)


class _NoProduct(MagCache):
    def reuse(self, call):
        _, error, count = self.counts.get(call.condition, (1.0, 0.0, 0))
        self.counts[call.condition] = 1.0, error, count
        return super().reuse(call)


class _RetentionDown(MagCache):
    def __init__(self, steps, retention=0.2, **options):
        super().__init__(steps, retention=retention, **options)
        self.first = int(retention * steps.count)


class _OneMore(MagCache):
    def __init__(self, steps, most=3, **options):
        super().__init__(steps, most=most + 1, **options)


class _CountedWithThemselves(MagCache):
    """Count the skipped steps as count += count + 1."""

    def reuse(self, call):
        ratio, error, count = self.counts.get(call.condition, (1.0, 0.0, 0))
        self.counts[call.condition] = ratio, error, 2 * count
        return super().reuse(call)


class _TableAsItIs(MagCache):
    def __init__(self, steps, **options):
        super().__init__(steps, **options)
        table = options["ratios"]
        self.ratios = [*table, *[1.0] * steps.count][: steps.count]


class _LowestFirst(TeaCache):
    def change(self, modulated, before):
        return float(np.polyval(self.polynomial[::-1], relative_distance(modulated, before)))


class _LastComputed(TeaCache):
    def reuse(self, call):
        before = self.modulated.get(call.condition)
        y = super().reuse(call)
        if y is not None and before is not None:
            self.modulated[call.condition] = before
        return y


class _NeverSummed(TeaCache):
    def reuse(self, call):
        self.error[call.condition] = 0.0
        return super().reuse(call)


class _Fading(TeaCache):
    def reuse(self, call):
        y = super().reuse(call)
        self.error[call.condition] *= 0.95
        return y


class _ResetByTheOther(TeaCache):
    """Reset the state at each call of the first step: that without the prompt clears what the prompt's kept."""

    def reuse(self, call):
        if call.step == 0:
            self.modulated.clear()
            self.error.clear()
        return super().reuse(call)


class _OneTea(TeaCache):
    def reuse(self, call):
        return super().reuse(call._replace(condition="cond"))

    def keep(self, call, end):
        super().keep(call._replace(condition="cond"), end)


# cache -> bug -> what takes its place
BUGS: Mapping[str, Mapping[str, type[Cache]]] = {
    "easycache": {
        "the sum is compared before the step's change is added": _ComparedBefore,
        "changes are not added up": _NeverAdded,
        "input compared with that of the step before, computed or not": _LastStep,
        "each condition decides for itself": _EachDecides,
        "one residual for all conditions": _OneResidual,
        "the last output, not the residual": _OutputReused,
        "the last steps are not protected": _with(
            EasyCache, sigma_window=lambda self, start, end: EasyCache.sigma_window(self, start, 1.0)
        ),
        "the first steps are not protected": _with(
            EasyCache, sigma_window=lambda self, start, end: EasyCache.sigma_window(self, 0.0, end)
        ),
        "start and end as shares of the steps": _with(
            EasyCache, sigma_window=lambda self, *shares: window_of_steps(self.steps, *shares)
        ),
    },
    "ucache": {
        "the estimate does not grow with the steps skipped in a row": _NotAnyStreak,
        "one threshold for all steps": _with(UCache, limit=lambda self: self.threshold),
        "change over the output's size alone": _with(UCache, scale=lambda self: self.norm),
        "the error is reset at every computed step": _AlwaysReset,
        "start and end as shares of the training": _with(UCache, sigma_window=EasyCache.sigma_window),
    },
    "dbcache": {
        "distance of the inputs not relative": _with(
            DBCache, change=lambda self, x: float(np.abs(x - self.ends[self.anchor][0]).mean())
        ),
        "distance relative to the new input": _with(
            DBCache, change=lambda self, x: relative_distance(self.ends[self.anchor][0], x)
        ),
        "Fn and Bn do not scale the threshold": _NoTrust,
        "first and last steps are not protected from dbcache": _with(DBCache, active=lambda self, step: True),
    },
    "first-block": {
        "residual compared with that of the step before, computed or not": _ResidualFollows,
        "the first block's outputs are compared, not its residuals": _OutputsCompared,
        "the residual is added to the first block's input": _FromTheStart,
        "one state for all conditions": _OneForAll,
    },
    "taylorseer": {
        "extrapolated by one step": _with(
            TaylorSeer, weight=lambda self, distance, k: TaylorSeer.weight(self, 1, k)
        ),
        "extrapolated from the first step": _FarAsAll,
        "no factorial": _with(TaylorSeer, weight=lambda self, distance, k: float(distance**k)),
        "differences not divided by their distance": _PlainDifferences,
        "the last value again": _with(TaylorSeer, weight=lambda self, distance, k: float(k == 0)),
        "the interval counts from step 0": _CountedFromZero,
        "no computed steps at the end": _NoCooldown,
    },
    "magcache": {
        "errors are not added up": _NoSum,
        "ratios are not multiplied": _NoProduct,
        "retained steps rounded down": _RetentionDown,
        "one more step in a row": _OneMore,
        "the table is not stretched": _TableAsItIs,
        "steps in a row are counted 1, 3, 7": _CountedWithThemselves,
    },
    "teacache": {
        "the polynomial is left out": _with(
            TeaCache, change=lambda self, modulated, before: relative_distance(modulated, before)
        ),
        "the polynomial's lowest power first": _LowestFirst,
        "modulated input compared with that of the last computed step": _LastComputed,
        "the last step is reused": _with(TeaCache, protected=lambda self, step: step == 0),
        "the rescaled changes are not added up": _NeverSummed,
        "what is added up fades at each reused step": _Fading,
        "the prompt's state is reset by the call without it": _ResetByTheOther,
        "one state for all conditions": _OneTea,
    },
}
