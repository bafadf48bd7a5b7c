"""Calibration: the device at hand is measured, and what pricing needs to know of it written down as a profile."""
