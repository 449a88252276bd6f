"""Times of linear attention and state-space models: one token per sequence, or the tokens of a prompt.

A decode step reads and writes the state of each sequence. A prompt is processed in chunks, whose products the FLOPs of
the recurrence measure. The constants are from measured kernels of the gated delta rule and of causal convolutions in
vLLM 0.24 (aiconfigurator, gdn tables): start-up 4.3 us for a decode and 11 to 18 us for a prompt; 0.82 to 0.89 of the
bandwidth (H100, H200, B300); 0.24 of the 16-bit peak on H100 and H200, 0.15 on B300.
"""

from __future__ import annotations

from trine.cluster.presets import GpuSpec
from trine.compute.tables.machine import peak_of
from trine.workload.architecture.blocks import KimiDelta, LinearAttention, Mamba, Mamba2

Recurrence = LinearAttention | KimiDelta | Mamba2 | Mamba
#: The same kinds, for ``isinstance``.
RECURRENCES = (LinearAttention, KimiDelta, Mamba2, Mamba)
_DECODE_START_US, _PREFILL_START_US, _CONVOLUTION_US = 4.3, 12.0, 4.3
_BANDWIDTH_SHARE, _PEAK_SHARE = 0.85, 0.2
#: Bytes of an element of a state: float32.
STATE_BYTES = 4


def decode_us(mixer: Recurrence, gpu: GpuSpec, ways: int, sequences: int) -> float:
    """Return microseconds of one layer for one token of each sequence; ways: GPUs that share the heads."""
    num_bytes = 2 * sequences * mixer.cache().state * STATE_BYTES / ways
    return _CONVOLUTION_US + _DECODE_START_US + 1e6 * num_bytes / (gpu.memory_bytes_per_s * _BANDWIDTH_SHARE)


def prefill_us(mixer: Recurrence, gpu: GpuSpec, ways: int, tokens: int) -> float:
    """Return microseconds of one layer for ``tokens`` of a prompt."""
    seconds = mixer.context_flops(tokens) / ways / (_PEAK_SHARE * peak_of(gpu, "bfloat16"))
    return _CONVOLUTION_US + _PREFILL_START_US + 1e6 * seconds
