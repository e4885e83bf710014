"""Greedy tokens by vLLM, in a process of its own: python -m tests.adapter.vllm_greedy < job > answer, both JSON.

The job has a folder, dtype, horizons, prompts of token ids and the number of new tokens; the answer, on the last line,
has for each horizon the tokens and their log-probabilities for each prompt.
"""

import json
import sys


def main() -> None:
    from vllm import LLM, SamplingParams

    job = json.load(sys.stdin)
    params = SamplingParams(temperature=0, max_tokens=job["new"], logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    answer = []
    for horizon in job["horizons"]:
        llm = LLM(
            job["folder"],
            skip_tokenizer_init=True,
            dtype=job["dtype"],
            enforce_eager=True,
            max_model_len=64,
            hf_overrides={"horizon": horizon},
        )
        rows = [request.outputs[0] for request in llm.generate(prompts, params, use_tqdm=False)]
        tokens = [list(row.token_ids) for row in rows]
        logs = [[step[token].logprob for step, token in zip(row.logprobs, row.token_ids, strict=True)] for row in rows]
        answer.append({"tokens": tokens, "logprobs": logs})
        del llm
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
