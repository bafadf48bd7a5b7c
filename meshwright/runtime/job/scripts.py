"""Scripts that start a plan on its hosts: the same command on each, joined by torchrun's rendezvous."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from math import prod

from meshwright.cluster import load_cluster
from meshwright.cluster.enumerate import per_host
from meshwright.cluster.mesh import Axis
from meshwright.errors import ClusterError, PlanError
from meshwright.plan import Plan
from meshwright.runtime.job.options import STEPS

PORT = 29500
TORCHRUN = "python -m meshwright.runtime.job.elastic"
"""torchrun, without a second message after a rank's own."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is to be started: on how many hosts, with how many ranks on each, which training command. script: of one's
    own, with its arguments, in place of `meshwright train`. restarts: how often torchrun starts all ranks again."""

    hosts: int
    per_host: int
    gpus: bool
    arguments: tuple[str, ...]
    script: tuple[str, ...] = ()
    restarts: int = 0

    @property
    def ranks(self) -> str:
        """torchrun's words for how many, where, and how often."""
        again = f" --max-restarts={self.restarts}" if self.restarts else ""
        return f"--nnodes={self.hosts} --nproc-per-node={self.per_host}{again}"

    @property
    def words(self) -> tuple[str, ...]:
        """What torchrun starts."""
        return self.script or ("-m", "meshwright", "train", *self.arguments)


def run_of(plan: Plan, path: str, extra: tuple[str, ...] = (), script: tuple[str, ...] = (), restarts: int = 0) -> Run:
    """How a plan lies on hosts: a mesh axis's first hops are those inside one."""
    if not plan.model and not script:
        todo = "add --script 'YOUR_SCRIPT.py', which calls mw.parallelize(model, mw.Plan.load(...), loss)"
        raise PlanError(f"{path} names no model: it was made in Python", "a script that trains by it", todo)
    world = plan.world_size
    axes = plan.stages[0].mesh.axes
    ranks = _of_pipeline(plan) if len(plan.stages) > 1 else _of_mesh(plan)
    if world % ranks:
        ranks = world
    gpus = axes[0].backend == "nccl" if axes else False
    return Run(world // ranks, ranks, gpus, (plan.model, "--plan", path, *extra), script, restarts)


def run_line(plan: Plan, path: str) -> str:
    """The one command that runs a plan file."""
    if not plan.model:
        return f"torchrun --nproc-per-node={plan.world_size} YOUR_SCRIPT.py  # with mw.parallelize(model, Plan.load())"
    run = run_of(plan, path)
    if run.hosts == 1:
        return shlex.join(("meshwright", "train", *run.arguments))
    return f"meshwright launch {shlex.quote(path)} --print slurm > run.sh && sbatch run.sh"


def _of_mesh(plan: Plan) -> int:
    inside = _innermost(plan)
    return prod(max(_sizes_at(axis, inside), default=1) for axis in plan.mesh.axes)


def _of_pipeline(plan: Plan) -> int:
    """A stage may be smaller than a host: the plan knows; of one that does not, the cluster does, where it still has
    the name it was planned under."""
    if plan.per_host:
        return plan.per_host
    try:
        return per_host(load_cluster(plan.cluster))
    except ClusterError:
        return plan.world_size


def _innermost(plan: Plan) -> str:
    """The level that devices of one host share: the first hop of an axis that has the most."""
    longest = (max(axis.kinds, key=len) for axis in reversed(plan.mesh.axes))
    return next((hops[0].level for hops in longest if hops), "")


def _sizes_at(axis: Axis, level: str) -> Iterator[int]:
    return (hop.size for hops in axis.kinds for hop in hops if hop.level == level)


def _filled(template: str, **words: object) -> str:
    """A file of `templates`, with text in place of its `<words>`."""
    text = files("meshwright.runtime.job").joinpath("templates", template).read_text(encoding="utf-8")
    words = {"torchrun": TORCHRUN, "port": PORT, **words}
    return re.sub(r"<(\w+)>", lambda found: str(words[found[1]]), text)


def torchrun(run: Run) -> str:
    where, check, note = "--standalone", "", "# On this machine."
    if run.hosts > 1:
        where = f'--rdzv-backend=c10d --rdzv-endpoint="$HEAD:{PORT}"'
        check = ': "${HEAD:?set HEAD to the name of the first host}"\n'
        note = (
            f"# On each of the {run.hosts} hosts, with HEAD set to the name of one of them: HEAD=host0 bash run.sh\n"
            "# MESHWRIGHT_KEY, any text, the same on all: others on the network can then not tell ranks to end."
        )
    words = shlex.join(run.words)
    return _filled("torchrun.sh", note=note, check=check, where=where, ranks=run.ranks, words=words)


def slurm(run: Run) -> str:
    gpus = f"#SBATCH --gpus-per-node={run.per_host}\n" if run.gpus else ""
    words = shlex.join(run.words)
    return _filled("slurm.sh", hosts=run.hosts, gpus=gpus, use=_on_slurm(run), ranks=run.ranks, words=words)


def _on_slurm(run: Run) -> str:
    if run.script:
        return """\
# sbatch run.sh ARGUMENTS of the script. Two minutes before the time is over it gets SIGINT: it should save and end. The
# job is then queued again, with the same arguments.
"""
    steps = "" if "--steps" in run.words else f"# It trains {STEPS} steps, unless --steps says how many.\n"
    return f"""\
{steps}# sbatch run.sh --steps 1000 --data text.txt: whatever `meshwright train` takes, after what is written below.
# Two minutes before the time is over it saves and is queued again, and after a node is lost too; it then goes on from
# the last checkpoint. After an error of its own it ends, unless --max-restarts starts the ranks again.
"""


def kubernetes(run: Run) -> str:
    limits = f"\n          resources: {{limits: {{nvidia.com/gpu: {run.per_host}}}}}" if run.gpus else ""
    words = [
        *TORCHRUN.split(), *run.ranks.split(), "--rdzv-backend=c10d",
        f"--rdzv-endpoint=meshwright-0.meshwright:{PORT}", *run.words,
    ]  # fmt: skip
    command = "\n".join(f"            - {_quoted(word)}" for word in words)
    return _filled("kubernetes.yaml", hosts=run.hosts, limits=limits, command=command)


def ray(run: Run) -> str:
    resources = ", use_gpu=True, resources_per_worker={'GPU': 1}" if run.gpus else ""
    workers = run.hosts * run.per_host
    return _filled("ray.txt", workers=workers, arguments=list(run.arguments), resources=resources)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


SCRIPTS: dict[str, Callable[[Run], str]] = {
    "torchrun": torchrun,
    "slurm": slurm,
    "kubernetes": kubernetes,
    "ray": ray,
}
