"""The loop as nodes: recorded, split and interleaved, installed; the same bits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from rlprof.overlap import check_declarations
from rlprof.overlap.contents import Contents
from rlprof.overlap.equality import equal_bits
from rlprof.overlap.errors import IllegalTransformationError
from rlprof.overlap.lower import lower
from rlprof.overlap.optimize.search import search
from rlprof.overlap.transforms import interleave, split_spatial, split_temporal
from rlprof.overlap.transforms.common import beside, group_key
from rlprof.taskgraph import verify
from rlprof.workloads.embodied.build import make_simulator, make_trainer
from rlprof.workloads.embodied.contracts import GlobalStep
from rlprof.workloads.embodied.nodes import wrap_trainer
from tests.workloads.embodied.made import left, small, trained

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")

EPOCH = "iteration/generate_rollouts/rollout_epoch"
CHUNK = f"{EPOCH}/chunk"


def spatial(graph):
    return interleave(split_spatial(graph, CHUNK, 2), CHUNK)


def temporal(graph):
    return interleave(split_temporal(graph, EPOCH, 2), EPOCH)


@pytest.mark.parametrize(
    ("region", "transform", "options"),
    [
        ("iteration", spatial, {"policy": "pi0", "phases": True}),
        ("iteration", temporal, {"policy": "gr00t"}),
        (
            "generate_rollouts",
            spatial,
            {"policy": "openvla_oft", "algorithm": "grpo", "group": 2, "phases": True},
        ),
        ("iteration", spatial, {"policy": "pi05", "minibatch_scope": "epoch", "workers": 2}),
        ("iteration", temporal, {"policy": "pi0", "whole_answers": True, "workers": 2}),
        ("iteration", spatial, {"policy": "openvla_oft", "whole_answers": True}),
        ("iteration", spatial, {"policy": "pi0", "train": "expert", "keep_prefix": True}),
        ("iteration", spatial, {"policy": "gr00t", "prefix_worker": True, "algorithm": "grpo", "group": 2}),
        ("iteration", temporal, {"policy": "pi05", "prefix_worker": True, "phases": True}),
        ("iteration", spatial, {"policy": "openvla_oft", "prefix_worker": True, "whole_answers": True}),
        (
            "iteration",
            temporal,
            {
                "policy": "pi0",
                "prefix_worker": True,
                "whole_answers": True,
                "train": "expert",
                "keep_prefix": True,
                "workers": 2,
            },
        ),
        ("iteration", temporal, {"policy": "gr00t", "train": "expert", "keep_prefix": True, "workers": 2}),
    ],
)
def test_training_goes_on_bit_for_bit(region, transform, options) -> None:
    config = small(**options)
    wanted, state = trained(config, 4)
    trainer, spare = make_trainer(config), make_simulator(config)
    wrapped = wrap_trainer(trainer, [spare])
    program, out = wrapped.program, []

    def run(*steps: int) -> None:
        out.extend(trainer.iteration(GlobalStep(i)) for i in steps)

    try:
        recording = program.record(wrapped.nodes[region], run=lambda: run(0, 1))
        changed = transform(program.graph(recording))
        program.install(changed)
        run(2)
        replacement = program.table[wrapped.nodes[region].path]
        assert not verify(replacement.executor.tasks, replacement.last_record)
        program.uninstall()
        run(3)  # natively again
        assert equal_bits(out, wanted)
        assert equal_bits(left(trainer), state)
    finally:
        wrapped.unwrap()
        trainer.env.simulator.close()
        spare.close()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_what_an_answer_needs_is_made_beside_the_answer_of_another_group(whole: bool, apart: bool) -> None:
    config = small(whole_answers=whole, prefix_worker=apart)
    trainer, spare = make_trainer(config), make_simulator(config)
    wrapped = wrap_trainer(trainer, [spare])
    program = wrapped.program
    recording = program.record(
        wrapped.nodes["iteration"], run=lambda: [trainer.iteration(GlobalStep(i)) for i in range(2)]
    )
    native = program.graph(recording)
    wrapped.unwrap()
    spare.close()
    answer = f"{CHUNK}/predict/answer"
    inside = {call.node.rpartition("/")[2] for call in native.below(answer)}
    phases = {"start", "denoise_step", "decode", *(() if apart else ("backbone",))}
    assert inside == ({"answer"} if whole else phases)
    seeing = {"vision", "backbone"} if apart else {"vision"}
    # an answer is in one component worker, as a window to fill must be
    assert {native.nodes[call.node].component for call in native.below(answer)} == {"rollout"}
    for graph in (spatial(native), temporal(native)):
        workers = {task.name.rpartition("/")[2]: task.worker for task in lower(graph).tasks}
        assert {name for name, worker in workers.items() if worker == "host"} == {"noise", "upload"}
        assert {name for name, worker in workers.items() if worker == "vision"} == seeing
        groups = sorted({group_key(call) for call in graph.below(answer)})
        assert len(groups) == 2
        for prepared in ("noise", "upload", *seeing):
            for mine, other in (groups, groups[::-1]):
                calls = [c for c in graph.below(f"{CHUNK}/predict/{prepared}") if group_key(c) == mine]
                answers = [c for c in graph.below(answer) if group_key(c) == other]
                assert beside(graph, calls, answers) is not None
        # moving them within their group gains nothing, and is not tried
        for target in (answer, f"{CHUNK}/predict/noise"):
            moves = [c.name for c in search(graph, target, {}).candidates if c.steps[0].kind == "rewire"]
            moves = [name for name in moves if "/predict/" in name]
            # all but the first point of the chain needs the prefix
            assert not moves or (
                apart and not whole and moves == [f"rewire {CHUNK}/predict/backbone stream=own"]
            )


def test_wrapping_changes_nothing_and_is_undone() -> None:
    config = small()
    wanted, state = trained(config, 1)
    trainer = make_trainer(config)
    before = {id(x): set(vars(x)) for x in (trainer, trainer.env, trainer.rollout, trainer.actor)}
    wrapped = wrap_trainer(trainer)
    assert equal_bits([trainer.iteration(GlobalStep(0))], wanted)
    assert equal_bits(left(trainer), state)
    wrapped.unwrap()
    assert {id(x): set(vars(x)) for x in (trainer, trainer.env, trainer.rollout, trainer.actor)} == before
    assert trainer.chunk is iter


def test_environments_that_reset_by_themselves_forbid_epochs_side_by_side() -> None:
    config = small(auto_reset=True)
    trainer = make_trainer(config)
    wrapped = wrap_trainer(trainer, [make_simulator(config)])
    program = wrapped.program
    recording = program.record(
        wrapped.nodes["iteration"], run=lambda: [trainer.iteration(GlobalStep(i)) for i in range(2)]
    )
    with pytest.raises(IllegalTransformationError, match="ENV"):
        temporal(program.graph(recording))
    wrapped.unwrap()


def content(arrays: Any) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def weights(policy: Any) -> str:
    return content(policy.state_dict().values())


def moments(optimizer: Any) -> str:
    return content(value for state in optimizer.state_dict()["state"].values() for value in state.values())


def test_what_is_declared_is_what_is_written() -> None:
    trainer = make_trainer(small(phases=True, auto_reset=True))
    wrapped = wrap_trainer(trainer)

    def run() -> None:
        for i in range(2):
            trainer.iteration(GlobalStep(i))

    seen = {
        "ENV": lambda simulator: content(simulator.state_dict().values()),
        "W": weights,
        "THETA": weights,
        "OPT": moments,
    }
    report = check_declarations(wrapped.program, run, reads=False, fingerprints=seen)
    assert not report.findings
    # no episode ends within a rollout epoch but at its end, so all of them write
    assert not report.never_written
    wrapped.unwrap()


def test_checks_look_into_simulators_and_policies() -> None:
    trainer = make_trainer(small())
    places = Contents({"ENV": trainer.env.simulator, "W": trainer.rollout.policy}).places
    assert {"ENV._state", "ENV._target"} <= set(places)
    assert sum(path.startswith("W.") for path in places) > 20
