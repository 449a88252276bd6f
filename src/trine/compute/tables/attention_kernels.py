"""Speed of each generation of attention kernels relative to the kernel in the tables.

The tables measure TensorRT-LLM's kernel on Hopper (FlashAttention-3's methods). Inside steps, Transformer Engine
picked FlashAttention-2 on A100 PCIe and cuDNN on B200. Shares:

- FlashAttention-2 on H100 reaches 35 % of the peak at best (Shah et al., FlashAttention-3, arXiv:2407.08608,
  abstract), the tables' kernel 54 % (causal, 16 384 tokens, head size 128): 0.65. FlashAttention-3 is 1.5 to 2.0 x
  as fast as FlashAttention-2 forward and 1.5 to 1.75 x backward (ibid.). The middles are 1.75 and 1.62, which gives
  1.13 forward. Backward, the ratio measured on B200 counts as FlashAttention-3's, so FlashAttention-2 has
  1.13 / 1.62 = 0.70.
- FlashAttention is half as fast as FlashAttention-2, Triton's 1.3 to 1.5 x slower forward and 2 x backward (Dao,
  arXiv:2307.08691, section 4.1).
- FlashAttention-2 reaches at most 73 % of an A100's peak forward and 63 % backward (ibid., section 1).
- cuDNN on Hopper is about as fast as FlashAttention-3 (arXiv:2407.08608, figures 5 and 6).

In MXFP8, cuDNN on Blackwell is faster than in bf16 by the ratios of NVIDIA/cudnn-frontend at 3929da2,
benchmark/sdpa_benchmark_training/results (dsv3 and llama3.1 of gb200 and gb300, cuDNN 9.22, causal, batch 2, medians of
2,048, 4,096 and 8,192 tokens). Casts are no part of them. Its backward kernel in MXFP8 does not skip the scores outside
a sliding window (results of gpt_oss).
"""

from __future__ import annotations

_Shares = dict[str, tuple[float, float]]

#: Kernel -> shares forward and backward. A GPU without a kernel runs its predecessor.
_HOPPER: _Shares = {
    "flash-1": (0.325, 0.35), "triton": (0.46, 0.35), "flash-2": (0.65, 0.7), "flash-3": (1.13, 1.13),
    "cudnn": (1.13, 1.13),
}  # fmt: skip
#: Relative to FlashAttention-2, which A100 PCIe ran inside steps. Later kernels need Hopper.
_OLDER: _Shares = {"flash-1": (0.5, 0.5), "triton": (0.71, 0.5)}
#: Relative to cuDNN, which B200 ran inside steps. FlashAttention-2 runs there as on Hopper, without new instructions.
_BLACKWELL: _Shares = {
    "flash-1": (0.29, 0.31), "triton": (0.41, 0.31), "flash-2": (0.57, 0.62), "flash-3": (1.0, 1.0),
}  # fmt: skip
#: Highest share of the peak that FlashAttention-2 reaches (forward, backward) on GPUs older than Hopper.
_MAX_OLDER = (0.73, 0.63)

#: MXFP8 attention over bf16, forward and backward: heads above 128 elements (latent attention), and other heads.
_MXFP8 = {"latent": (1.40, 1.25), "other": (1.21, 0.92)}
#: The same on Blackwell Ultra, whose exponentials are twice as fast.
_MXFP8_ULTRA = {"latent": (1.58, 1.33), "other": (1.33, 0.92)}
_ULTRA = ("b300", "gb300")
_LARGEST_OTHER = 128


def mxfp8_speedup(gpu: str, head_size: int, *, backward: bool) -> float:
    """Return the speed of attention in MXFP8 over that in 16 bits on a Blackwell GPU."""
    speedups = _MXFP8_ULTRA if gpu in _ULTRA else _MXFP8
    return speedups["latent" if head_size > _LARGEST_OTHER else "other"][backward]


def kernel_share(generation: str, kernel: str, *, backward: bool) -> float:
    """Return a kernel's speed relative to the tables' kernel; 1 for no name and for kernels the GPU lacks."""
    shares = {"hopper": _HOPPER, "blackwell": _BLACKWELL}.get(generation, _OLDER)
    return shares.get(kernel, (1.0, 1.0))[backward]


def most_of_peak(generation: str, kernel: str, *, backward: bool) -> float:
    """Return the highest published share of the GPU's peak for the kernel, or 1 if no source gives one."""
    if generation in ("hopper", "blackwell"):
        return 1.0
    return _MAX_OLDER[backward] * kernel_share(generation, kernel, backward=backward)
