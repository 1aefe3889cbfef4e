"""Small statistics over what a run wrote: quantiles, weighted means, histograms of lags. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.launch.report.run_files import MetricsRecord


def values_of(records: Iterable[MetricsRecord], name: str) -> list[float]:
    return [record.values[name] for record in records if name in record.values]


def quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p95, max; None without values."""
    if not values:
        return {"p50": None, "p95": None, "max": None}
    p50, p95 = np.percentile(values, [50, 95])
    return {"p50": float(p50), "p95": float(p95), "max": float(max(values))}


def weighted_mean(records: Iterable[MetricsRecord], name: str, weight: str) -> tuple[float | None, int]:
    """The mean of `name` weighted by `weight`, and the sum of the weights; (None, 0) where nothing was counted."""
    total, count = 0.0, 0.0
    for record in records:
        if name in record.values and record.values.get(weight, 0.0) > 0:
            total += record.values[name] * record.values[weight]
            count += record.values[weight]
    return (total / count, int(count)) if count else (None, 0)


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def histogram_summary(counts: Mapping[int, int]) -> dict[str, float | int | None]:
    """mean, p50, p95, max and n of a histogram {value: count}. A quantile is the smallest value that covers its
    share."""
    total = sum(counts.values())
    if not total:
        return {"mean": None, "p50": None, "p95": None, "max": None, "n": 0}
    ordered = sorted(counts)
    cumulative = np.cumsum([counts[value] for value in ordered])

    def quantile(share: float) -> int:
        return ordered[int(np.searchsorted(cumulative, share * total))]

    average = sum(value * count for value, count in counts.items()) / total
    return {"mean": average, "p50": quantile(0.5), "p95": quantile(0.95), "max": ordered[-1], "n": total}
