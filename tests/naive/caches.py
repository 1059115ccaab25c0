"""Caches, read directly from their sources: one function a cache, from all states of a run to what each step gives.

Each takes xs and ends, [S, ...] (of the first condition), and returns (reused, out) for the conditions in `ends`.
"""

import math

import numpy as np


def _mean(x):
    return float(np.abs(x).sum() / x.size)


def _window(sigmas, first, last):
    return [last < sigma <= first for sigma in sigmas[:-1]]


def flow_sigma(percent, shift):
    """DiscreteFlowDenoiser::t_to_sigma of (1 - percent) * 999."""
    if percent <= 0:
        return math.inf
    if percent >= 1:
        return 0.0
    t = ((1 - percent) * 999 + 1) / 1000
    return shift * t / (1 + (shift - 1) * t)


def sdcpp(kind, xs, ends, sigmas, threshold, start=0.15, end=0.95, decay=1.0, relative=1, reset=1, shift=3.0):
    """easycache.hpp and ucache.hpp of stable-diffusion.cpp 97d2990, state by state."""
    n = len(xs)
    if kind == "easycache":
        window = flow_sigma(start, shift), flow_sigma(end, shift)
    else:
        window = sigmas[min(int(start * n), n - 1)], sigmas[min(int(end * n), n - 1)]
    names = list(ends)
    diff, seen = {}, {"prev_in": None, "prev_out": None, "norm": 0.0, "rate": None, "ema": None}
    cumulative, computed, streak = 0.0, 0, 0
    reused, out = {name: [] for name in names}, {name: [] for name in names}
    for s, active in enumerate(_window(sigmas, *window)):
        skip, moved = False, None
        for name in names:
            if active and not skip and name == names[0] and seen["prev_in"] is not None:
                moved = _mean(xs[s] - seen["prev_in"])
                if seen["rate"] is not None and moved > 0 and seen["norm"] > 0:
                    approx = seen["rate"] * moved
                    limit = threshold
                    if kind == "easycache":
                        cumulative += approx / seen["norm"]
                    else:
                        base = max(seen["norm"], 1e-6)
                        dynamic = base if seen["ema"] is None else max(seen["ema"] * 1.6, 1e-6)
                        approx = approx / math.sqrt(base * dynamic) if relative else approx
                        cumulative = cumulative * decay + approx * (1 + 0.5 * streak)
                        progress = computed / n
                        limit *= 0.5 if progress < 0.2 else 1.5 if progress > 0.8 else 1.0
                        limit *= 1.0 if relative else seen["norm"]
                    if cumulative < limit:
                        skip, streak = True, streak + 1
                    elif reset:
                        cumulative = 0.0
            if active and skip and name in diff:
                reused[name].append(1)
                out[name].append(xs[s] + diff[name])
                continue
            y = ends[name][s]
            reused[name].append(0)
            out[name].append(y)
            if not active:
                continue
            diff[name] = y - xs[s]
            if name != names[0]:
                continue
            change = 0.0 if seen["prev_out"] is None else _mean(y - seen["prev_out"])
            if change > 0:
                seen["ema"] = change if seen["ema"] is None else 0.8 * seen["ema"] + 0.2 * change
            if moved and change > 0:
                seen["rate"] = change / moved
            seen |= {"prev_in": xs[s], "prev_out": y, "norm": _mean(y)}
            computed, streak, moved = computed + 1, 0, None
            cumulative = 0.0 if kind == "easycache" else cumulative
    return reused, out


def dbcache(xs, ends, sigmas, threshold, Fn, Bn):
    """CacheDitConditionState of stable-diffusion.cpp 97d2990."""
    n = len(xs)
    front = max(0.5, min(2.0, 1 + 0.02 * (Fn - 8))) if Fn > 0 else 1
    back = max(0.5, min(1.0, 1 - 0.03 * Bn)) if Bn > 0 else 1
    last, reused, out = None, {name: [] for name in ends}, {name: [] for name in ends}
    for s, active in enumerate(_window(sigmas, sigmas[int(0.15 * n)], sigmas[int(0.95 * n)])):
        near = last is not None and _mean(xs[s] - xs[last]) / _mean(xs[last]) < threshold * front * back
        for name, states in ends.items():
            reused[name].append(int(active and near))
            out[name].append(xs[s] + states[last] - xs[last] if active and near else states[s])
        if active and not near:
            last = s
    return reused, out


def first_block(xs, heads, ends, threshold):
    """FBCHeadBlockHook of diffusers 0.42.1. heads: after the first block"""
    last, reused, out = None, [], []
    for s in range(len(xs)):
        if last is not None:
            before = heads[last] - xs[last]
            ratio = np.abs(heads[s] - xs[s] - before).mean() / np.abs(before).mean()
        if last is None or ratio > threshold:
            last = s
        reused.append(int(last != s))
        out.append(heads[s] + ends[last] - heads[last])
    return reused, out


def taylor(ends, interval, before, order, after=10**9):
    """Newton's backward differences instead of a recursion: each factor from all computed steps behind it."""
    reused, out, steps = [], [], []
    for s in range(len(ends)):
        if s < before or s >= after or (s - before) % interval == 1 % interval:
            steps.append(s)
            reused.append(0)
            out.append(ends[s])
            continue
        rows = [{at: ends[at] for at in steps}]
        for k in range(order):
            pairs = [(b, a) for a, b in zip(steps[k:], steps[k + 1 :], strict=False)]
            rows.append({b: (rows[k][b] - rows[k][a]) / (b - a) for b, a in pairs})
        terms = [row[steps[-1]] * (s - steps[-1]) ** k / math.factorial(k) for k, row in enumerate(rows) if row]
        reused.append(1)
        out.append(np.sum(terms, axis=0))
    return reused, out


def magcache(xs, ends, threshold, most, retention, ratios):
    """MagCacheHeadHook of diffusers 0.42.1."""
    n, last, since = len(xs), None, []
    table = [ratios[round(i * (len(ratios) - 1) / (n - 1))] for i in range(n)]
    reused, out = [], []
    for s in range(n):
        since = [*since, table[s]] if s >= math.floor(retention * n + 0.5) else []
        error = sum(abs(1 - math.prod(since[: k + 1])) for k in range(len(since)))
        if not since or last is None or error > threshold or len(since) > most:
            last, since = s, []
        reused.append(int(last != s))
        out.append(xs[s] + ends[last] - xs[last])
    return reused, out


def teacache(xs, modulated, ends, threshold, polynomial):
    """teacache_forward of TeaCache4FLUX."""
    last, total, reused, out = 0, 0.0, [], []
    for s in range(len(xs)):
        if 0 < s < len(xs) - 1:
            r = np.abs(modulated[s] - modulated[s - 1]).mean() / np.abs(modulated[s - 1]).mean()
            total += sum(a * r**k for k, a in enumerate(polynomial[::-1]))
        if s in (0, len(xs) - 1) or total >= threshold:
            last, total = s, 0.0
        reused.append(int(last != s))
        out.append(xs[s] + ends[last] - xs[last])
    return reused, out
