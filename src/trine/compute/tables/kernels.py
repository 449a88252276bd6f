"""Generations of attention kernels: how fast each is, compared with the one that stands in the tables.

The tables' kernel is TensorRT-LLM's on Hopper (FlashAttention-3's methods), and inside steps on A100 PCIe and B200
Transformer Engine's choice: FlashAttention-2, cuDNN. Shares:

- FlashAttention-2 on H100 reaches 35 % of the peak at best (Shah et al., FlashAttention-3, arXiv:2407.08608, abstract),
  the tables' kernel 54 % (causal, 16 384 tokens, head size 128): 0.65. FlashAttention-3 is 1.5 to 2.0 x as fast as it
  forward and 1.5 to 1.75 x backward (ibid.): the middles, 1.75 and 1.62, give 1.13 forward; backward FlashAttention-3
  stands for the ratio measured on B200, so FlashAttention-2 has 1.13 / 1.62 = 0.70.
- FlashAttention is half as fast as FlashAttention-2, Triton's 1.3 to 1.5 x slower forward and 2 x backward (Dao,
  arXiv:2307.08691, section 4.1).
- FlashAttention-2 reaches at most 73 % of an A100's peak forward and 63 % backward (ibid., section 1).
- cuDNN's on Hopper is about FlashAttention-3's (arXiv:2407.08608, figures 5 and 6).
"""

from __future__ import annotations

_Shares = dict[str, tuple[float, float]]

#: Kernel -> shares forward and backward. Where a GPU has no such kernel, its forerunner's.
_HOPPER: _Shares = {
    "flash-1": (0.325, 0.35), "triton": (0.46, 0.35), "flash-2": (0.65, 0.7), "flash-3": (1.13, 1.13),
    "cudnn": (1.13, 1.13),
}  # fmt: skip
#: Against FlashAttention-2, which A100 PCIe ran inside steps; the later ones need Hopper.
_OLDER: _Shares = {"flash-1": (0.5, 0.5), "triton": (0.71, 0.5)}
#: Against cuDNN's, which B200 ran inside steps. FlashAttention-2 runs there as on Hopper, without its new instructions.
_BLACKWELL: _Shares = {
    "flash-1": (0.29, 0.31), "triton": (0.41, 0.31), "flash-2": (0.57, 0.62), "flash-3": (1.0, 1.0),
}  # fmt: skip
#: Most of the peak that FlashAttention-2 reaches on GPUs whose warps compute tiles by themselves.
_MOST_OLDER = (0.73, 0.63)


def kernel_share(generation: str, kernel: str, *, backward: bool) -> float:
    """Speed of a kernel over that of the one in the tables; 1 where none is named, or the GPU has no other."""
    of = {"hopper": _HOPPER, "blackwell": _BLACKWELL}.get(generation, _OLDER)
    return of.get(kernel, (1.0, 1.0))[backward]


def most_of_peak(generation: str, kernel: str, *, backward: bool) -> float:
    """The largest share of a GPU's peak that the kernel was seen to reach; 1 where nobody says."""
    if generation in ("hopper", "blackwell"):
        return 1.0
    return _MOST_OLDER[backward] * kernel_share(generation, kernel, backward=backward)
