"""From a model to an exported graph: what export is kept from tripping over, and layers traced once."""
