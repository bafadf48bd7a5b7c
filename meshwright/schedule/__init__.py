"""Pipeline orders as Instructions."""

from meshwright.schedule.one_stage import one_stage, plan_instructions

__all__ = ["one_stage", "plan_instructions"]
