"""Areas of the mutation run: files of the source, and the tests that should notice a change in them.

Every file of src/trine belongs to an area (``tests/unit/project/test_mutation_areas.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE, TESTS = ROOT / "src" / "trine", ROOT / "tests"


@dataclass(frozen=True)
class Area:
    """Area of the source: patterns below src/trine and tests; ``compiled``: whether Numba compiles kernels."""

    source: tuple[str, ...]
    tests: tuple[str, ...]
    compiled: bool = True

    def source_files(self) -> list[Path]:
        """Return the files of the source, sorted. Raises ValueError for a pattern without files."""
        return _files(SOURCE, self.source)

    def test_files(self) -> list[Path]:
        """Return the files of tests, sorted. Raises ValueError for a pattern without files."""
        return [path for path in _files(TESTS, self.tests) if path.name.startswith("test_")]


def _files(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    found: set[Path] = set()
    for pattern in patterns:
        files = {path for path in folder.glob(pattern) if path.suffix == ".py"}
        if not files:
            raise ValueError(f"no file below {folder.relative_to(ROOT)} matches {pattern!r}")
        found |= files
    return sorted(found)


AREAS = {
    "engine": Area(
        ("engine/*.py",),
        (
            "closed_form/test_engine*", "closed_form/test_pressure*", "closed_form/test_circuit*",
            "closed_form/test_fifo*", "closed_form/test_k_of_n*", "unit/*/test_engine*", "unit/*/test_circuit*",
            "unit/*/test_fifo*", "unit/*/test_network*", "oracle/test_engine*", "oracle/test_circuit*",
            "oracle/test_fifo*",
            "property/test_engine*", "property/test_circuit*", "property/test_fifo*", "unit/folding/test_partition.py",
            "oracle/test_folding_partition.py",
        ),
        compiled=False,
    ),
    "folding": Area(
        ("folding/[!_]*.py",),
        (
            "closed_form/test_folding*", "oracle/test_folding*", "property/test_folding*",
            "property/test_together.py", "unit/*/test_folding*",
            "property/test_contention_folded.py", "unit/folding/test_partition.py", "unit/cli/test_cli_folding.py",
            "closed_form/test_train*", "closed_form/test_local_sgd.py", "closed_form/test_pipeline*",
            "property/test_train*", "property/test_broadcast*", "unit/parallel/test_stragglers.py",
            "unit/results/test_metrics_ranks.py", "unit/cli/test_cli_hop.py", "property/test_forms*",
            "unit/results/test_metrics_traffic.py",
        ),
    ),
    "collectives": Area(
        ("collectives/*.py", "collectives/nccl/*.py", "collectives/schedules/*.py"),
        (
            "closed_form/test_collectives*", "closed_form/test_cost*", "closed_form/test_library*",
            "closed_form/test_run_schedule.py", "closed_form/test_packet*", "closed_form/test_loadstore_costs.py",
            "crosscheck/test_collectives_measured.py", "crosscheck/test_plans*", "property/test_collect*",
            "property/test_library*", "property/test_local*", "property/test_plans*",
            "closed_form/test_link_loads.py",
            "oracle/test_lookups.py", "unit/*/test_collective*", "unit/*/test_library*", "unit/*/test_plans*",
            "unit/cli/test_cli_collective.py",
        ),
    ),
    "parallel": Area(
        ("parallel/*.py", "parallel/schedules/*.py"),
        (
            "closed_form/test_contention*", "closed_form/test_experts*", "closed_form/test_hop*",
            "closed_form/test_local_sgd.py", "closed_form/test_offload*", "closed_form/test_pipeline*",
            "closed_form/test_recomputation.py", "closed_form/test_sequence*", "closed_form/test_sharding*",
            "closed_form/test_train*", "golden/*", "oracle/test_hop*", "property/test_forms*", "property/test_hop*",
            "property/test_overlap*", "property/test_pass_copies.py", "property/test_pipeline*", "property/test_train*",
            "unit/*/test_parallel*", "unit/*/test_pipeline*", "unit/*/test_forms*", "unit/parallel/test_stragglers.py",
            "unit/cli/test_cli_pipeline.py",
            "unit/cli/test_cli_hop.py", "unit/cli/test_cli_overlap.py", "unit/results/test_metrics_memory.py",
            "closed_form/test_head*", "property/test_head*", "unit/parallel/test_tensor_layout.py",
            "oracle/test_memory*",
            "closed_form/test_split*",
        ),
    ),
    "measure": Area(
        ("measure/*.py",),
        ("unit/measure/test_*", "crosscheck/test_measured_gpu_left_out.py"),
        compiled=False,
    ),
    "compute": Area(
        ("compute/*.py", "compute/tables/*.py"),
        ("closed_form/test_compute*", "closed_form/test_cost*", "property/test_compute*", "unit/*/test_compute*",
         "crosscheck/test_compute*", "closed_form/test_synth*", "closed_form/test_sequence*",
         "closed_form/test_split*", "unit/common/test_refused_numbers.py", "unit/measure/test_gpu_file.py"),
    ),
    "memory": Area(
        ("parallel/memory.py", "graph/memory.py", "training/memory.py", "results/memory.py"),
        ("closed_form/test_memory*", "closed_form/test_gradient*", "unit/*/test_memory*",
         "unit/results/test_metrics_memory.py",
         "unit/training/test_mixed_machines.py", "crosscheck/test_memory*", "closed_form/test_recomputation.py",
         "oracle/test_memory*", "closed_form/test_sharding*", "closed_form/test_offload*", "closed_form/test_pipeline*",
         "closed_form/test_train*", "property/test_forms*", "property/test_train*", "unit/*/test_forms*",
         "unit/*/test_parallel*"),
    ),
    "allocator": Area(
        ("results/allocator.py",),
        ("unit/parallel/test_allocator.py", "oracle/test_allocator*", "unit/*/test_memory*"),
    ),
    "synthesis": Area(
        ("workload/synthesis/*.py", "workload/architecture/*.py", "workload/architecture/*/*.py"),
        ("closed_form/test_synth*", "closed_form/test_encoder_counts.py", "closed_form/test_memory*",
         "unit/workload/test_synthesize.py", "closed_form/test_model_*", "unit/workload/test_config_files.py",
         "closed_form/test_adapters.py", "closed_form/test_precision_recipes.py", "property/test_precision_laws.py",
         "property/test_layered_steps.py", "unit/training/test_memory_explained.py",
         "unit/common/test_refused_numbers.py",
         "crosscheck/test_synthesized*"),
    ),
    "contention": Area(
        ("parallel/contention.py", "parallel/no_overlap.py"),
        ("closed_form/test_contention*", "property/test_contention*", "property/test_overlap*",
         "unit/cli/test_cli_overlap.py", "unit/training/test_mixed_machines.py"),
    ),
    "expert-kernels": Area(
        ("gpu/kernels/moe/*.py",),
        ("closed_form/test_moe*", "property/test_moe*", "unit/gpu/test_kernel_build.py"),
    ),
    "signals": Area(
        ("folding/signals.py",),
        ("property/test_together.py", "property/test_folding_collective.py", "closed_form/test_moe*",
         "property/test_folding_observed.py", "property/test_hierarchical*", "property/test_gpu_folding*"),
    ),
    "profiles": Area(
        ("software/*.py", "parallel/constraints.py", "parallel/fixed_costs.py", "parallel/stage.py"),
        ("closed_form/test_software*", "closed_form/test_memory*", "unit/*/test_software*",
         "unit/cli/test_cli_software.py",
         "unit/parallel/test_layout_constraints.py", "unit/workload/test_trace_cpu.py",
         "unit/cluster/test_hostile_machines.py",
         "property/test_zero*"),
    ),
    "check": Area(
        ("check/compare.py", "check/likelihood.py", "check/hypotheses.py"),
        ("unit/*/test_check*", "oracle/test_check*", "crosscheck/test_check*"),
    ),
    "unlike-gpus": Area(
        ("parallel/rank_kinds.py", "workload/on_gpu.py", "training/explained.py"),
        ("unit/training/test_mixed_machines.py", "property/test_mixed*", "unit/workload/test_trace_cpu.py",
         "unit/workload/test_trace_gpu.py",
         "unit/*/test_memory*"),
    ),
    "planes": Area(
        ("cluster/planes.py",),
        ("unit/cluster/test_cluster_planes.py", "unit/compute/test_compute_fp32.py", "unit/gpu/test_joint_nics.py"),
    ),
    "recorded-collectives": Area(
        ("workload/pytorch/communication.py",),
        ("unit/workload/test_trace_distributed.py", "unit/workload/test_trace_pytorch.py"),
    ),
    "metrics": Area(
        ("results/metrics.py", "results/waits.py", "results/activity.py", "results/intervals.py", "results/traffic.py",
         "results/energy.py", "results/run.py", "results/result.py", "results/only_ranks.py", "gpu/results/run.py",
         "gpu/results/bottleneck.py", "gpu/results/resources.py"),
        ("oracle/test_lookups.py", "closed_form/test_metrics*", "property/test_metrics*", "unit/*/test_metrics*",
         "unit/*/test_results*",
         "unit/results/test_energy.py", "unit/gpu/test_gpu_metrics.py", "unit/gpu/test_gpu_bottleneck.py",
         "unit/gpu/test_gpu_resources.py", "closed_form/test_gpu_views*", "closed_form/test_pipeline*"),
    ),
    "eidolon": Area(
        ("gpu/replay/*.py",),
        ("closed_form/test_eidolon*", "closed_form/test_flag*", "closed_form/test_replay*", "property/test_eidolon*",
         "property/test_replay*", "unit/*/test_eidolon*", "unit/*/test_fused*", "oracle/test_replay*"),
    ),
    "search": Area(
        ("search/*.py",),
        ("unit/search/*", "property/test_plan*", "property/test_screen.py", "unit/cli/test_cli_plan*"),
    ),
    "inference": Area(
        ("inference/*.py",),
        ("unit/inference/*", "closed_form/test_serving*", "property/test_serving*", "oracle/test_serving*",
         "unit/cli/test_cli_infer.py", "unit/cli/test_cli_serving.py"),
        compiled=False,
    ),
    "live": Area(("live/*.py",), ("unit/live/*",), compiled=False),
    "report": Area(("report/*.py",), ("unit/report/*",), compiled=False),
    "decide": Area(
        ("decide/*.py",),
        ("unit/decide/*", "closed_form/test_goodput.py"),
    ),
    "experiments": Area(("experiments/*.py",), ("unit/experiments/*", "unit/cli/test_cli_sweep*")),
    "formats": Area(
        ("formats/*.py", "formats/*/*.py"),
        ("unit/formats/*", "property/test_chakra*", "property/test_infragraph*", "property/test_import*",
         "crosscheck/test_chakra*", "crosscheck/test_infragraph*"),
    ),
    "runs": Area(
        ("runs/*.py", "results/kineto.py"),
        ("unit/runs/*", "closed_form/test_run_replay.py", "crosscheck/test_generated_runs.py"),
    ),
    "check-logs": Area(("check/*.py",), ("unit/check/*", "unit/*/test_check*", "oracle/test_check*")),
    "cluster": Area(
        ("cluster/*.py", "cluster/*/*.py"),
        ("unit/cluster/*", "oracle/test_cluster*", "property/test_cluster*", "property/test_degraded*",
         "unit/common/test_units*"),
    ),
    "common": Area(("*.py", "common/*.py", "testing/*.py"), ("unit/common/*", "unit/project/*", "unit/experiments/*")),
    "results": Area(
        ("results/*.py",),
        ("unit/results/*", "closed_form/test_metrics*", "property/test_metrics*", "closed_form/test_step_terms*"),
    ),
    "training": Area(
        ("training/*.py",),
        ("unit/training/*", "closed_form/test_train*", "closed_form/test_memory*", "closed_form/test_host_memory.py",
         "closed_form/test_step_factors.py", "closed_form/test_other_profiles.py"),
    ),
    "cli": Area(("cli/*.py",), ("unit/cli/*",)),
    "graph": Area(("graph/*.py",), ("unit/graph/*", "oracle/test_engine*", "closed_form/test_memory*")),
    "gpu": Area(
        ("gpu/*.py", "gpu/*/*.py", "gpu/kernels/*/*.py"),
        ("unit/gpu/*", "closed_form/test_gpu*", "property/test_gpu*", "oracle/test_gpu*", "closed_form/test_kernel*",
         "property/test_kernel*", "closed_form/test_turns*", "closed_form/test_host_loops.py"),
    ),
    "workload": Area(
        ("workload/*.py", "workload/*/*.py"),
        ("unit/workload/*", "closed_form/test_synth*", "closed_form/test_encoder*", "property/test_import*"),
    ),
    "decentralised": Area(
        ("decentralised/*.py",),
        ("closed_form/test_hop*", "oracle/test_hop*", "property/test_hop*", "unit/cli/test_cli_hop.py"),
    ),
    "validation": Area(
        ("../../validation/*.py", "../../validation/*/*.py"),
        ("unit/validation/*", "closed_form/test_tuned*", "closed_form/test_own_csv.py"),
    ),
}  # fmt: skip
