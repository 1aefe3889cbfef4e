"""A small Llama made from scratch, with a character tokenizer of its own. Needs no network and no file."""

from __future__ import annotations

from pathlib import Path

from headrace.launch.models.characters import PRINTABLE_ASCII, character_tokenizer


class ScratchLlama:
    """The defaults make about a million parameters. Weights are float32, drawn from the run's seed.

    num_kv_heads None: as many as heads. tied: input and output embeddings share one matrix.
    """

    def __init__(
        self,
        *,
        hidden_size: int = 128,
        num_layers: int = 4,
        num_heads: int = 4,
        num_kv_heads: int | None = None,
        head_dim: int = 32,
        intermediate_size: int = 512,
        max_positions: int = 512,
        tied: bool = False,
        rope_theta: float = 10000.0,
        init_std: float = 0.02,
        alphabet: str = PRINTABLE_ASCII,
    ) -> None:
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        sizes = {
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "intermediate_size": intermediate_size,
            "max_positions": max_positions,
        }
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"model.{name} must be >= 1, got {value}")
        if num_heads % num_kv_heads:
            raise ValueError(f"model.num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}")
        if head_dim % 2:
            raise ValueError(f"model.head_dim must be even (rotary positions), got {head_dim}")
        self._sizes = sizes
        self._tied = tied
        self._rope_theta = rope_theta
        self._init_std = init_std
        self._alphabet = alphabet

    def prepare(self, target_dir: Path, seed: int) -> Path:
        """See ModelSource."""
        import torch
        from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

        tokenizer = character_tokenizer(self._alphabet)
        special = {
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
        }
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=self._sizes["hidden_size"],
            num_hidden_layers=self._sizes["num_layers"],
            num_attention_heads=self._sizes["num_heads"],
            num_key_value_heads=self._sizes["num_kv_heads"],
            head_dim=self._sizes["head_dim"],
            intermediate_size=self._sizes["intermediate_size"],
            max_position_embeddings=self._sizes["max_positions"],
            tie_word_embeddings=self._tied,
            rope_parameters={"rope_type": "default", "rope_theta": self._rope_theta},
            initializer_range=self._init_std,
            dtype="float32",
            **special,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(config)
        model.generation_config = GenerationConfig(**special)
        model.save_pretrained(target_dir)
        tokenizer.save_pretrained(target_dir)
        return target_dir
