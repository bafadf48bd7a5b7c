"""Pipeline orders as Instructions."""

from meshwright.plan.tasks import Order, Task
from meshwright.schedule.check import verify_lists
from meshwright.schedule.lists import Lists, lists
from meshwright.schedule.of_plan import plan_lists, plan_pipeline
from meshwright.schedule.one_stage import one_stage, plan_instructions
from meshwright.schedule.orders import ORDERS, in_flight, in_flight_of
from meshwright.schedule.pipeline import Pipeline, Run, pipeline
from meshwright.schedule.searched import Durations, searched

__all__ = [
    "ORDERS", "Durations", "Lists", "Order", "Pipeline", "Run", "Task", "in_flight", "in_flight_of", "lists",
    "one_stage", "pipeline", "plan_instructions", "plan_lists", "plan_pipeline", "searched", "verify_lists",
]  # fmt: skip
