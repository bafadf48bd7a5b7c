"""The parts of `bench/zoo.py`: lists of models by source, the trial of one of them, and the page."""
