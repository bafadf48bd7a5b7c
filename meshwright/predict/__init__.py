"""Predictions: the seconds and bytes of a plan, by playing its Instructions with costs made from the plan alone."""

from meshwright.predict.step import predict, predicted

__all__ = ["predict", "predicted"]
