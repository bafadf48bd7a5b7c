"""`meshwright price`: what a given configuration of a model costs, without search."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model reference of the families gpt, llama or moe, such as llama3-8b")
    parser.add_argument("--cluster", required=True, help="a preset (dgx-h100:4), a device (h100:8) or a TOML file")
    parser.add_argument("--global-batch", type=int, metavar="N", help="sequences of a step")
    parser.add_argument(
        "--pin", action="append", default=[], metavar="NAME=VALUE",
        help="dp, tp, pp, vpp, cp, ep, zero, sp, micro_batch, recompute, precision, attention, schedule, ...",
    )  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the model")
    parser.add_argument("--seq", type=int, metavar="S", help="sequence length; the same as --set seq=S")
    parser.add_argument("--precision", metavar="P", help="the same as --pin precision=P")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from meshwright.cluster import load_cluster
    from meshwright.configuration.price import priced
    from meshwright.configuration.replicas import predicted, tightest
    from meshwright.configuration.transformer import transformer_of

    cluster = load_cluster(args.cluster)
    settings = (*args.set, *([f"seq={args.seq}"] if args.seq is not None else []))
    pins = [*args.pin, *([f"precision={args.precision}"] if args.precision else [])]
    model = transformer_of(args.model, settings)
    steps = priced(model, cluster, pins, args.global_batch)
    given, found, (device, held) = steps[0].given, predicted(steps), tightest(steps)
    tokens = given.global_batch * model.seq
    axes = " ".join(f"{name}={getattr(given, name)}" for name in ("dp", "tp", "pp", "cp", "ep", "vpp"))
    limit, named = device.usable_bytes, f" ({device.name})" if len(cluster.devices) > 1 else ""
    print(f"{args.model} on {cluster.name}: {axes} zero={given.zero} micro_batch={given.micro_batch}", end=" ")
    print(f"({given.microbatches} micro-batches of a batch of {given.global_batch}) recompute={given.recompute}")
    print(f"  step    {found.step_s:.4g} s, {tokens / found.step_s / given.devices:,.0f} tokens/s per device")
    print(f"  memory  {held / 2**30:.4g} GiB of {limit / 2**30:.4g}{named}", end="")
    print("" if held <= limit else ": does not fit")
    if given.pp > 1:
        print(f"  bubble  {found.bubble:.1%}")
    print("an estimate by formulas for transformers, as published configurations are run (docs/accuracy.md);")
    print("`meshwright plan --pin ...` prices, op by op, what meshwright itself would run")
    return 0
