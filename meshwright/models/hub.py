"""Whether the model hub answers: asked once and shortly, where its client would wait and ask again five times."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request

from meshwright.errors import ModelError

PATIENCE_S = 2.5


def cache_alone(place: str) -> bool:
    """Whether the config of a hub id is to be read from the local cache without asking the hub.

    A hub id is refused whose config is neither in the cache nor within reach. HF_HUB_OFFLINE is respected.
    """
    try:
        from huggingface_hub import constants, try_to_load_from_cache
    except ImportError:
        return False  # `transformers` is missing too, and its refusal names what to install
    try:
        cached = isinstance(try_to_load_from_cache(place, "config.json"), str)
    except ValueError as error:
        raise unreadable(place, str(error)) from error
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _silence(constants.ENDPOINT)
    if why is not None and not cached:
        raise unreadable(place, f"{why}, and its config.json is not in the local cache")
    return why is not None


def _silence(endpoint: str) -> str | None:
    """Why an address cannot be reached, or None: any answer is one. Proxies are those of the environment."""
    said = [f"{endpoint} does not answer within {PATIENCE_S} s"]

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=PATIENCE_S):
                said.clear()
        except urllib.error.HTTPError:
            said.clear()
        except (OSError, ValueError) as error:
            said[0] = f"{endpoint} does not answer ({getattr(error, 'reason', error)})"

    # In a thread, because looking up a name has no time limit of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return said[0] if said else None


def unreadable(place: str, why: str) -> ModelError:
    return ModelError(
        f"{place} cannot be read from the hub: {why}",
        "a hub id that can be reached from here, or a folder with its config.json",
        f"where there is a network: `hf download {place} config.json --local-dir DIR`; then name DIR here",
    )
