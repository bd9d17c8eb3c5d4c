"""PromQL over the store. Today: plain selectors with `offset`, and arithmetic of numbers (Grafana's health check is `1+1`).

Answers have Prometheus' own JSON form, errors included; what is not supported yet is refused in one sentence.
"""

from pipeline.promql.answers import instant, label_values, labels, range_, series
from pipeline.promql.numbers import number

__all__ = ["instant", "label_values", "labels", "number", "range_", "series"]
