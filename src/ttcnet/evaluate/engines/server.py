"""A model on a server that speaks OpenAI's chat protocol."""

from __future__ import annotations

from collections.abc import Sequence

from ttcnet.chat_client import Endpoint, Failed, Reply, Request
from ttcnet.errors import fail

from .base import FAILED, Answer, Ask, Groups, Sampling, Watch, check_likelihood, unwatched

TOGETHER = 1.0  # seconds for which answers are gathered


class Server:
    """A question without an answer after all attempts comes back as failed, not as wrong. `likelihoods` asks for those
    of the answers, which not every server gives."""

    plans = False

    def __init__(self, endpoint: Endpoint, likelihoods: bool = False) -> None:
        self.endpoint, self.likelihoods = endpoint, likelihoods

    def facts(self) -> dict[str, str]:
        return {"model": self.endpoint.model, "kind": "server", "dtype": "the server's"}

    def check(self, asks: Sequence[Ask], max_tokens: int) -> None:
        """Check nothing: the server checks the length itself."""

    def answers(self, asks: Sequence[Ask], how: Sampling, watch: Watch = unwatched) -> Groups:
        requests = [
            Request(
                ask.messages, how.max_tokens, how.temperature, ask.seed, stop=how.stop, logprobs=self.likelihoods,
                prefix=ask.prefix,
            )
            for ask in asks
        ]  # fmt: skip
        for group in self.endpoint.ask_in_groups(requests, TOGETHER):
            answers = [(number, _answer(reply)) for number, reply in group]
            for number, answer in answers:
                if self.likelihoods and answer.finish != FAILED:  # now, not when all have been asked
                    check_likelihood(answer.mean_logprob, answer.new_tokens, asks[number].name)
            yield answers


def _answer(reply: Reply | Failed) -> Answer:
    if isinstance(reply, Failed):
        return Answer("", None, None, FAILED, note=f"{reply.reason} ({reply.attempts} attempts)")
    if reply.new_tokens is None:
        remedy = "Use one that does, such as vLLM's."
        fail("server", "must count the tokens of its answers", "no usage", remedy, "conflict")
    (choice,) = reply.choices
    return Answer(choice.text, reply.prompt_tokens, reply.new_tokens, choice.finish, choice.mean_logprob)
