"""What a hand-given configuration of a transformer costs: dp, tp, pp, cp, ep, ZeRO, recomputation. No search."""

from meshwright.configuration.configuration import Configuration
from meshwright.configuration.replicas import predict_configuration
from meshwright.configuration.transformer import Transformer

__all__ = ["Configuration", "Transformer", "predict_configuration"]
