"""Score an exported quickstart model with plain transformers and prompts of its own: no line of Headrace is used.

    headrace export runs/latest exported
    python examples/plain_transformers.py exported --num 512

Prints the share of lists that are sorted exactly, greedy and at temperature 1, each with its standard error.
"""

from __future__ import annotations

import argparse
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def problem(generator: random.Random) -> tuple[str, str]:
    """A prompt such as "v7,3,9,1=" and its answer "[9,7,3,1]"."""
    numbers = [generator.randint(0, 9) for _ in range(generator.randint(4, 5))]
    descending = generator.random() < 0.5
    answer = sorted(numbers, reverse=descending)
    return f"{'v' if descending else '^'}{','.join(map(str, numbers))}=", f"[{','.join(map(str, answer))}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--num", type=int, default=512)
    parser.add_argument("--seed", type=int, default=20_000_003)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32).eval()
    generator = random.Random(arguments.seed)
    torch.manual_seed(arguments.seed)
    problems = [problem(generator) for _ in range(arguments.num)]
    batch = tokenizer([prompt for prompt, _ in problems], return_tensors="pt", padding=True)
    for name, options in (("greedy", {"do_sample": False}), ("temperature 1", {"do_sample": True, "top_k": 0})):
        with torch.no_grad():
            output = model.generate(**batch, max_new_tokens=16, pad_token_id=tokenizer.pad_token_id, **options)
        texts = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        share = sum(text == answer for text, (_, answer) in zip(texts, problems, strict=True)) / arguments.num
        print(f"{name}: {share:.3f} ± {(share * (1 - share) / arguments.num) ** 0.5:.3f} (n {arguments.num})")


if __name__ == "__main__":
    main()
