"""Plays Instructions with predicted durations: time, idleness, communication and memory of a step."""

from meshwright.simulate.costs import Costs, SegmentCost, Transfer
from meshwright.simulate.play import simulate
from meshwright.simulate.timeline import StageTimes, Timeline

__all__ = ["Costs", "SegmentCost", "StageTimes", "Timeline", "Transfer", "simulate"]
