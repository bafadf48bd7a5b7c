"""What a plan takes and holds: its Instructions, played with costs made from the plan alone."""

from meshwright.predict.step import predict, predicted

__all__ = ["predict", "predicted"]
