"""Plan, FrontierPoint, Instruction: data only."""

from meshwright.plan.frontier import Choice, FrontierPoint
from meshwright.plan.instruction import Instruction
from meshwright.plan.plan import Plan
from meshwright.plan.records import InputPlan, ParameterPlan, Prediction, Stage, StageLink, StagePrediction

__all__ = [
    "Choice", "FrontierPoint", "InputPlan", "Instruction", "ParameterPlan", "Plan", "Prediction", "Stage",
    "StageLink", "StagePrediction",
]  # fmt: skip
