"""Log-probs and their gradients by chunks of the vocabulary's logits, against all logits at once: memory and seconds.

    python benchmarks/chunked_loss.py [--quick] [--json FILE]

Each figure is of a process of its own: `peak_mb` is what forward and backward added to its largest resident size
(the gradients of weight and hidden states included), `seconds`
the best of the passes. One head, float32, random: hidden size 576 with 49,152 words, 896 with 151,936.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

FORMS = ("plain", 256, 512, 1024)
SHAPES = ((49_152, 576), (151_936, 896))


def measure(form: str | int, vocab: int, hidden: int, tokens: int, passes: int) -> dict[str, float]:
    import resource
    import time

    import torch

    from headrace.actors.learner.token_logprobs import plain_token_logprobs, token_logprobs

    def peak_kb() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    torch.manual_seed(0)
    weight_VH = torch.empty(vocab, hidden).normal_(std=0.02).requires_grad_()
    hidden_NH = torch.randn(tokens, hidden, requires_grad=True)
    fixed = (None, torch.randint(0, vocab, (tokens,)), torch.ones(tokens))
    before_kb = peak_kb()
    seconds = []
    for _ in range(passes):
        hidden_NH.grad = weight_VH.grad = None
        started = time.perf_counter()
        if form == "plain":
            logprobs_N = plain_token_logprobs(hidden_NH, weight_VH, *fixed)
        else:
            logprobs_N = token_logprobs(hidden_NH, weight_VH, *fixed, chunk_tokens=int(form))
        logprobs_N.mean().backward()  # type: ignore[no-untyped-call]
        seconds.append(time.perf_counter() - started)
    return {
        "peak_mb": (peak_kb() - before_kb) / 1024,
        "seconds": min(seconds),
        "logprob": float(logprobs_N.detach().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="512 tokens, the smaller vocabulary, one pass")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], *map(int, options.one[1:]))))
        return
    tokens, passes = (512, 1) if options.quick else (4096, 2)
    rows: list[dict[str, Any]] = []
    print(f"{tokens} tokens\n{'vocab':>8} {'form':>6} {'peak MB':>9} {'seconds':>8} {'memory':>8} {'time':>6}")
    for vocab, hidden in SHAPES[: 1 if options.quick else None]:
        for form in FORMS:
            command = [sys.executable, __file__, "--one", *map(str, (form, vocab, hidden, tokens, passes))]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=900).stdout
            row = {"vocab": vocab, "hidden": hidden, "tokens": tokens, "form": form, **json.loads(out)}
            plain = row if form == "plain" else next(r for r in rows if r["vocab"] == vocab)
            row["memory_ratio"] = plain["peak_mb"] / row["peak_mb"]
            row["time_ratio"] = row["seconds"] / plain["seconds"]
            rows.append(row)
            print(
                f"{vocab:>8} {form:>6} {row['peak_mb']:>9.0f} {row['seconds']:>8.2f} "
                f"{row['memory_ratio']:>7.1f}x {row['time_ratio']:>5.2f}x",
                flush=True,
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
