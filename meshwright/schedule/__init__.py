"""Pipeline orders as Instructions."""

from meshwright.schedule.one_stage import one_stage

__all__ = ["one_stage"]
