"""Plan llama3-405b on a laptop: which cluster trains it, how, how fast? No GPU is needed and no weights are made.

python examples/plan_a_cluster.py                                  # llama3-405b on 512 and 1024 H100s: some minutes
python examples/plan_a_cluster.py --model llama3-8b --clusters h100:8,dgx-h100:2
"""

from __future__ import annotations

import argparse

import meshwright as mw


def main() -> list[mw.Plan]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama3-405b")
    parser.add_argument("--clusters", default="dgx-h100:64,dgx-h100:128")
    parser.add_argument("--global-batch", type=int, default=256)
    parser.add_argument("--report", metavar="FOLDER", help="write a page for each cluster")
    args = parser.parse_args()

    plans = []
    for cluster in args.clusters.split(","):
        plan = mw.plan(args.model, cluster=cluster, global_batch=args.global_batch, precision="mixed", effort="fast")
        plans.append(plan)
        print(f"{plan!r}")
        if args.report:
            plan.report(f"{args.report}/{cluster.replace(':', '-')}.html")
    return plans


if __name__ == "__main__":
    main()
