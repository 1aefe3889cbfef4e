"""Rendering by a model's chat template: the whole template once for the prompt, then only its glue.

What the template puts between two turns is found by rendering a made-up conversation and cutting after the made-up
answer: [user, assistant ANSWER] + new messages → "…ANSWER" | "<|im_end|>\\n<|im_start|>tool\\n…assistant\\n".
Called by the turn loop only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import TemplateError

from headrace.actors.rendering.chat_template import ChatTemplate
from headrace.actors.rendering.edges import bos_id, stop_ids, with_bos
from headrace.actors.rendering.tokenizer import ModelTokenizer
from headrace.actors.session import ChatMessage, Tool

_ANSWER = "HEADRACE-MADE-UP-ANSWER"
_MADE_UP = (ChatMessage("user", "hello"), ChatMessage("assistant", _ANSWER))


class ChatRenderer:
    """`add_bos` None: as the tokenizer does by itself; a template that writes its own BOS never gets a second one.
    `stop_tokens`: names of further tokens that end a turn; those of the model's files and the template's own
    end-of-turn tokens are found without it.

    Raises ValueError where the folder has no chat template or a name in `stop_tokens` is no token.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        *,
        add_bos: bool | None = None,
        stop_tokens: Sequence[str] = (),
        template_arguments: Mapping[str, object] | None = None,
    ) -> None:
        if tokenizer.chat_template is None:
            raise ValueError(
                "the model folder has no chat template (chat_template.jinja or tokenizer_config.json); "
                "use renderer: plain, or save the tokenizer with its template"
            )
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer.chat_template, {**tokenizer.named_tokens, **(template_arguments or {})})
        self._bos = bos_id(tokenizer, add_bos)
        self._stop_token_ids = tuple(
            dict.fromkeys([*tokenizer.eos_token_ids, *self._turn_ends(), *stop_ids(tokenizer, stop_tokens)])
        )

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop_token_ids

    def prompt_ids(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> list[int]:
        ids = self._tokenizer.encode(self._template.render(messages, tools, generation_prompt=True))
        return with_bos(ids, self._bos)

    def continuation_ids(self, messages: Sequence[ChatMessage], *, sampled: Sequence[int]) -> list[int]:
        ids = self._tokenizer.encode(self._after_answer(messages))
        return ids[self._num_already_sampled(ids, sampled) :]

    def answer_ids(self, before: Sequence[ChatMessage], answer: ChatMessage, tools: Sequence[Tool] = ()) -> list[int]:
        """Raises ValueError where the template does not write `answer` behind what it opens the turn with."""
        opened = self._template.render(before, tools, generation_prompt=True)
        whole = self._template.render([*before, answer], tools, generation_prompt=False)
        if not whole.startswith(opened):
            raise ValueError(
                "the chat template rewrites what comes before an assistant's turn, so that its text cannot be told "
                f"apart: {opened[-60:]!r} is no beginning of {whole[:200]!r}…; use another template"
            )
        ids = self._tokenizer.encode(whole[len(opened) :])
        for end in range(len(ids), 0, -1):  # behind the stop token comes white space at most, which nobody samples
            if ids[end - 1] in self._stop_token_ids:
                return ids[:end]
            if self._tokenizer.decode([ids[end - 1]], special_tokens=True).strip():
                break
        return ids

    def text(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        return self._tokenizer.decode(token_ids, special_tokens=special_tokens)

    def _after_answer(self, messages: Sequence[ChatMessage]) -> str:
        text = self._template.render([*_MADE_UP, *messages], (), generation_prompt=True)
        # The first occurrence: a tool's output may contain the marker too, but it comes later.
        _, marker, after = text.partition(_ANSWER)
        if not marker:
            raise ValueError(
                "the chat template drops the assistant's text, so its glue cannot be found; use another one"
            )
        return after

    def _num_already_sampled(self, continuation: list[int], sampled: Sequence[int]) -> int:
        """How many tokens of the glue the model has sampled itself: its stop token, where the template begins with that
        token too (after nothing but white space)."""
        if not len(sampled) or int(sampled[-1]) not in self._stop_token_ids:
            return 0
        for index, token_id in enumerate(continuation):
            if token_id == int(sampled[-1]):
                return index + 1
            if self._tokenizer.decode([token_id], special_tokens=True).strip():
                break
        return 0

    def _turn_ends(self) -> list[int]:
        """The special tokens with which the template goes on after an assistant's text: an end-of-turn token, or the
        markers of the roles that may speak next."""
        ends = []
        for role in ("user", "tool"):
            try:
                after = self._after_answer([ChatMessage(role, "hello")])
            except TemplateError:  # a template without tools: no marker of its role to stop at
                continue
            ends += [i for i in self._tokenizer.encode(after.lstrip())[:1] if i in self._tokenizer.special_ids]
        return ends
