"""Names that frameworks give to their phases, where their code and their documentation differ."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: RLinf: label that the code emits, and the one that its profiling guide lists for the same phase. Labels
#: that agree (``actor/recv_traj``, ``env/bootstrap_step``) or that only one side knows are not listed.
RLINF_DOCUMENTED: Mapping[str, str] = MappingProxyType(
    {
        "run_training": "actor/run_training",
        "predict": "rollout/predict",
        "generate_one_epoch": "rollout/generate_epoch",
        "interact": "env/interact",
        "run_interact_once": "env/interact_once",
        "env_interact_step": "env/step",
    }
)

#: RLinf: part of the program that emits each label.
RLINF_ROLES: Mapping[str, str] = MappingProxyType(
    {
        label: role
        for role, labels in {
            "runner": (
                "step",
                "sync_weights",
                "generate_rollouts",
                "cal_adv_and_returns",
                "actor_training",
                "eval",
            ),
            "env": (
                "interact",
                "run_interact_once",
                "env_interact_step",
                "env/bootstrap_step",
                "compute_bootstrap_rewards",
                "env/send_rollout_trajectories",
                "prepare_micro_batches",
                "get_reward_model_output",
            ),
            "rollout": ("rollout/generate", "generate_one_epoch", "predict", "sync_model_from_actor"),
            "actor": ("actor/sync_model_to_rollout", "actor/recv_traj", "actor/compute_adv", "run_training"),
        }.items()
        for label in labels
    }
)


def spellings(label: str) -> tuple[str, ...]:
    """All names of the phase that `label` names, `label` first.

    >>> spellings("rollout/predict"), spellings("predict"), spellings("denoise")
    (('rollout/predict', 'predict'), ('predict', 'rollout/predict'), ('denoise',))
    """
    others = [d for e, d in RLINF_DOCUMENTED.items() if e == label]
    others += [e for e, d in RLINF_DOCUMENTED.items() if d == label]
    return (label, *others)
