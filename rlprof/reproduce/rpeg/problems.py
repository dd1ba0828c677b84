"""The planning problems of the paper's figures and tables (Appendix B, Tables X and XI)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlprof.planning.algorithms import ppo
from rlprof.planning.cluster import Cluster
from rlprof.planning.evaluate import Problem
from rlprof.planning.hardware_file import read_hardware
from rlprof.planning.workload import Workload, three_phases

#: The paper's machine, with the constants that are shipped for it.
HARDWARE = "gh200"
GPUS_PER_NODE = 4
PROMPT_TOKENS = 128


def cluster(racks: int, nodes: int, *, memory_bytes: float | None = None) -> Cluster:
    """Return GH200 nodes of four GPUs.

    Parameters
    ----------
    racks, nodes : int
        Racks, and nodes of each.
    memory_bytes : float, optional
        Of each GPU, in place of the shipped constant.
    """
    hardware = read_hardware(HARDWARE)
    if memory_bytes is not None:
        hardware = hardware.with_value("memory_bytes", memory_bytes, "RPEG, Table XI")
    return Cluster(hardware, racks, nodes, GPUS_PER_NODE)


@dataclass(frozen=True, slots=True)
class Setting:
    """One planning problem, as the paper's tables give it.

    Parameters
    ----------
    name : str
        What it is called here.
    actor, critic, reward : str
        Sizes in billions of parameters: "7", "13", "34", "70", "175".
    racks, nodes : int
        Of four GPUs each.
    prompts, response_tokens : int
        B and L_r. L_p is 128 in all of them.
    memory_bytes : float or None
        HBM of each GPU where the paper gives it.
    """

    name: str
    actor: str
    critic: str
    reward: str
    racks: int
    nodes: int
    prompts: int
    response_tokens: int
    memory_bytes: float | None = None

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.racks * self.nodes * GPUS_PER_NODE

    @property
    def problem(self) -> Problem:
        """The problem: PPO, reference of the actor's size, three response-length phases, eight steps."""
        pipeline = ppo(*(shape(size) for size in (self.actor, self.critic, self.reward)))
        work = Workload(
            self.prompts,
            PROMPT_TOKENS,
            self.response_tokens,
            quantiles=three_phases(self.response_tokens),
        )
        return Problem(pipeline, work, cluster(self.racks, self.nodes, memory_bytes=self.memory_bytes))

    def stale_by(self, steps: int) -> Problem:
        """The problem with this staleness of actor and critic."""
        problem = self.problem
        pipeline = problem.pipeline.with_staleness(dict.fromkeys(problem.pipeline.tau, steps))
        return replace(problem, pipeline=pipeline)


def shape(size: str) -> str:
    """Name of the model of this size: GPT-3 for 175B, else LLaMA-2."""
    return "gpt3-175b" if size == "175" else f"llama2-{size}b"


#: (B, L_r) of the weak-scaling study.
REGIMES = ((512, 128), (256, 384), (128, 896))
SIZES = ("7", "13", "34", "70")
SWEEPS = ("actor", "critic and reward", "joint")


def weak_scaling() -> list[Setting]:
    """Return the 36 cases of Figs 6 and 7, in one rack."""
    found = []
    for sweep in SWEEPS:
        for n, size in enumerate(SIZES):
            gpus = (16, 32, 64, 128)[n] if sweep == "joint" else (8, 16, 32, 64)[n]
            actor, critic, reward = {
                "actor": (size, "7", "7"),
                "critic and reward": ("7", size, size),
                "joint": (size, size, ("7", "7", "13", "13")[n]),
            }[sweep]
            for prompts, response in REGIMES:
                name = f"{sweep}, {actor}B/{critic}B, {gpus} GPUs, L_r {response}"
                found.append(Setting(name, actor, critic, reward, 1, gpus // 4, prompts, response))
    return found


#: GPUs of the strong-scaling study (Fig 8).
STRONG_GPUS = (8, 16, 32, 64, 128)


def strong_scaling(gpus: int) -> Setting:
    """Return one case of Fig 8: 13B models, B 1024, L_r 384."""
    return Setting(f"{gpus} GPUs", "13", "13", "13", 1, gpus // 4, 1024, 384)


#: Table XI. Wide is not printed in Table IV.
ABLATION = (
    Setting("MemTight", "13", "13", "13", 1, 4, 128, 896, 50e9),
    Setting("Wide", "7", "7", "7", 1, 32, 1024, 384, 102e9),
    Setting("Hetero", "34", "7", "7", 1, 8, 512, 128, 102e9),
    Setting("Deep", "7", "70", "70", 2, 8, 512, 128, 102e9),
)
#: Table X.
STABILITY = (
    Setting("64 GPUs", "13", "13", "7", 2, 8, 1024, 384),
    Setting("128 GPUs", "34", "13", "13", 2, 16, 1024, 384),
    Setting("256 GPUs", "70", "34", "13", 4, 16, 1024, 384),
    Setting("512 GPUs", "70", "70", "34", 8, 16, 2048, 384),
    Setting("1024 GPUs", "175", "70", "34", 16, 16, 2048, 384),
)
#: Fig 12, left: sizes and GPUs are the paper's; batch, lengths and racks of 16 nodes are not printed.
CONVERGENCE = (
    Setting("7B, 256 GPUs", "7", "7", "7", 4, 16, 1024, 384),
    Setting("13B, 512 GPUs", "13", "13", "13", 8, 16, 2048, 384),
    Setting("34B, 1024 GPUs", "34", "34", "34", 16, 16, 2048, 384),
    Setting("70B, 2048 GPUs", "70", "70", "70", 32, 16, 4096, 384),
)
