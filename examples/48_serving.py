"""How fast is a served model? Latency and throughput under growing load, the parts of a step, and drafts.

Llama 3 70B in FP8 on four H200 with vLLM: throughput per GPU grows with the requests in flight, and each user waits
longer for a token. The likely ranges come from public runs of three engines.
"""

import trine
from trine.inference.job import Speculation


def main() -> None:
    print("llama-3-70b in FP8 on 4 x H200, vLLM, 1,024 + 1,024 tokens")
    print(f"{'in flight':>9} {'TTFT ms':>8} {'TPOT ms':>8} {'likely':>14} {'tokens/s per GPU':>17} {'per user':>9}")
    for concurrency in (1, 4, 16, 64, 256, 1024):
        answer = trine.infer(
            "llama-3-70b", "hgx-h200", tp=4, precision="fp8", input_tokens=1024, output_tokens=1024,
            concurrency=concurrency,
        )  # fmt: skip
        ttft = "queue" if answer.ttft_s is None else f"{answer.ttft_s.value * 1e3:.0f}"
        tpot = answer.tpot_s
        likely = f"{tpot.low * 1e3:.1f} to {tpot.high * 1e3:.1f}"
        per_gpu, per_user = answer.tokens_per_s_per_gpu.value, answer.tokens_per_s_per_user.value
        print(f"{concurrency:>9} {ttft:>8} {tpot.value * 1e3:>8.1f} {likely:>14} {per_gpu:>17,.0f} {per_user:>9.0f}")
    print(f"at most {answer.largest_concurrency} requests run at a time (limit: {answer.limit})\n")

    print("a decode step of gpt-oss-120b on 2 x H100, 32 requests")
    plain = trine.infer("gpt-oss-120b", "dgx-h100", tp=2, input_tokens=2048, output_tokens=512, concurrency=32)
    for part in plain.decode_parts:
        print(f"  {part.name:22} {part.seconds * 1e3:6.2f} ms {part.share:5.0%}")
    drafted = trine.infer(
        "gpt-oss-120b", "dgx-h100", tp=2, input_tokens=2048, output_tokens=512, concurrency=32,
        speculation=Speculation(drafts=3, acceptance=0.7),
    )  # fmt: skip
    gain = drafted.output_tokens_per_s.value / plain.output_tokens_per_s.value
    print(f"three drafts a step, each accepted with probability 0.7: {gain:.2f} x the tokens per second")


if __name__ == "__main__":
    main()
