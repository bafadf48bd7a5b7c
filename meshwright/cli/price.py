"""`meshwright price`: what a given configuration of a model costs, without search."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from meshwright.errors import counted
from meshwright.models.arguments import add_json, check_folder, write_json
from meshwright.models.family import BATCH
from meshwright.pins.of_price import USUAL, told

ASSUMED = f"sequences of a step (default {BATCH}, or the next multiple of dp x micro_batch)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model reference of the families gpt, llama or moe, such as llama3-8b")
    parser.add_argument("--cluster", required=True, help="a preset (dgx-h100:4), a device (h100:8) or a TOML file")
    parser.add_argument("--global-batch", type=int, metavar="N", help=ASSUMED)
    parser.add_argument(
        "--pin", action="append", default=[], metavar="NAME=VALUE",
        help=f"{', '.join(USUAL)}, ...; each is explained below",
    )  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the model")
    parser.add_argument("--seq", type=int, metavar="S", help="sequence length; the same as --set seq=S")
    parser.add_argument("--precision", metavar="P", help="the same as --pin precision=P")
    add_json(parser, "the configuration and what is predicted of it")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"pins, each with an example:\n{told()}"
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.cli.options import PRECISIONS, assumed_batch, check_batch
    from meshwright.cluster import load_cluster
    from meshwright.configuration.configuration import dealt, described, gives_batch
    from meshwright.configuration.price import priced
    from meshwright.configuration.replicas import predicted, tightest
    from meshwright.configuration.transformer import transformer_of
    from meshwright.explain.recommend import emulated
    from meshwright.models.reference import parse_reference
    from meshwright.plan.units import show_bytes, show_seconds

    check_folder("--json", args.json)
    check_batch(args)
    cluster = load_cluster(args.cluster)
    settings = (*args.set, *([f"seq={args.seq}"] if args.seq is not None else []))
    pins = [*args.pin, *([f"precision={PRECISIONS.get(args.precision, args.precision)}"] if args.precision else [])]
    model, named = transformer_of(args.model, settings), parse_reference(args.model, settings)
    steps = priced(model, cluster, pins, args.global_batch)
    given, found, (device, held) = steps[0].given, predicted(steps), tightest(steps)
    tokens = given.global_batch * model.seq
    axes = " ".join(f"{name}={getattr(given, name)}" for name in ("dp", "tp", "pp", "cp", "ep", "vpp"))
    limit, fullest = device.usable_bytes, f" ({device.name})" if len(cluster.devices) > 1 else ""
    slow = emulated(cluster.devices, given.precision)
    assumed = args.global_batch is None and not gives_batch(pins)
    notes = [note for note in (slow, assumed_batch(given.global_batch) if assumed else "") if note]
    rate = tokens / found.step_s / given.devices
    if args.json:
        answer = {
            "model": str(named),
            "cluster": cluster.name,
            "configuration": asdict(given) | {"microbatches": given.microbatches},
            "predicted": asdict(found),
            "device": device.name,
            "run_layers": steps[0].run_layers,
            "peak_bytes": held,
            "limit_bytes": limit,
            "fits": held <= limit,
            "tokens_per_second_per_device": rate,
            "notes": notes,
        }
        write_json(args.json, json.dumps(answer, indent=1))
        if args.json == "-":
            return 0
    print(f"{named} on {cluster.name}: {axes} zero={given.zero} micro_batch={given.micro_batch}", end=" ")
    cut = counted(given.microbatches, "micro-batch")
    print(f"({cut} of a batch of {given.global_batch})")
    print(f"  {described(given, pins)}")
    if given.pp > 1:
        print(f"  layers  {dealt(given, steps[0].run_layers)}")
    print(f"  step    {show_seconds(found.step_s)}, {rate:,.0f} tokens/s per device")
    print(f"  memory  {show_bytes(held)} of {show_bytes(limit)}{fullest}", end="")
    hosted = f" and {show_bytes(found.host_bytes)} of the host's memory for each device" if found.host_bytes else ""
    print(hosted if held <= limit else f"{hosted}: does not fit")
    if given.pp > 1:
        print(f"  bubble  {found.bubble:.1%}")
    for note in notes:
        print(f"note: {note}")
    print("an estimate by formulas for transformers, as published configurations are run (docs/accuracy.md);")
    print("`meshwright plan --pin ...` prices, op by op, what meshwright itself would run")
    return 0
