"""`meshwright calibrate`: measure this machine's device and write its profile."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="profile.json", help="the file to write (default profile.json)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), help="what to measure (default: a GPU if there is one)")
    parser.add_argument("--name", help="what to call the device (default: its own name)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import torch

    from meshwright.cluster.calibrate.measure import calibrate
    from meshwright.cluster.profile_load import check_profile
    from meshwright.errors import ClusterError

    output = Path(args.output)
    if output.suffix != ".json":
        raise ClusterError(f"-o {args.output}", "a path that ends in .json: clusters know a profile by that")
    if not os.path.isdir(output.parent):
        raise ClusterError(f"-o {args.output}: there is no folder {output.parent}", "a writable path")
    kind = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ClusterError("--device cuda, but torch sees no GPU", "a machine with one", "use --device cpu")
    if kind == "cpu":
        torch.set_num_threads(1)
    device = torch.device(kind)
    found = calibrate(device, nominal(device), lambda text: print(f"measuring {text}", file=sys.stderr, flush=True))
    found["name"] = args.name or found["name"]
    found["sources"] = sources(found)
    check_profile(found, args.output)
    write_profile(output, found)
    print(summary(found, args.output))
    return 0


def nominal(device: torch.device) -> dict[str, Any] | None:
    """What is known of a GPU by its name: its nominal rates, so that fractions and MFU are of these."""
    import torch

    from meshwright.cluster.detect.devices import known_name
    from meshwright.cluster.device_table import GPUS

    if device.type != "cuda":
        return None
    name = known_name(torch.cuda.get_device_name(device))
    if name is None:
        return None
    known = GPUS[name].device
    return {"name": name, "peaks": dict(known.peaks), "memory_bandwidth": known.memory_bandwidth}


def sources(profile: dict[str, Any]) -> dict[str, str]:
    """Where each figure comes from: nominal ones from the presets, the rest from here and now."""
    measured = f"measured by `meshwright calibrate`, torch {profile['measured']['torch']}"
    assumed = "assumption: context and communicators" if profile["kind"] == "cuda" else "assumption: interpreter, torch"
    nominal_rates = profile["peaks"].keys() != {name for name in profile["reached"] if name != "copy"}
    rates = "nominal, as in the presets" if nominal_rates else measured
    return {
        "peaks": rates,
        "memory_bandwidth": rates,
        "memory_bytes": "what the device says of itself",
        "reserve_bytes": assumed,
        **dict.fromkeys(("launch_s", "achievable.matmul", "achievable.memory", "tables"), measured),
    }


def summary(profile: dict[str, Any], path: str) -> str:
    reached = {name: rate for name, rate in profile["reached"].items() if name != "copy"}
    lines = [f"{profile['name']} in {profile['measured']['seconds']} s, written to {path}"]
    lines += [f"  matmul {name}: {rate / 1e12:.4g} TFLOP/s" for name, rate in reached.items()]
    lines.append(f"  copy: {profile['reached']['copy'] / 1e9:.4g} GB/s, launch: {profile['launch_s'] * 1e6:.3g} us")
    lines.append(f'name it in a cluster file: [device.NAME] with profile = "{path}"')
    return "\n".join(lines)


def write_profile(path: Path, profile: dict[str, Any]) -> None:
    from meshwright.errors import ClusterError

    try:
        path.write_text(profile_text(profile), encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"{path} cannot be written: {error.strerror}", "a writable path") from error


def profile_text(profile: dict[str, Any]) -> str:
    """JSON with each list of numbers on one line."""
    text = json.dumps(profile, indent=1)
    text = re.sub(r"\[\s+([-0-9.e+,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    pairs = r"\[\s+(\[[-0-9.e+, ]+\](?:,\s+\[[-0-9.e+, ]+\])*)\s+\]"
    return re.sub(pairs, lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"
