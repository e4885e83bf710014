"""lm-evaluation-harness on models with TTC layers: `ttcnet eval lm`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from lm_eval import evaluator, simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable, make_table

from ttcnet.environment import commit, provenance
from ttcnet.errors import TTCNetError, check_integer, fail
from ttcnet.machine.processes import is_first_process
from ttcnet.model_names import loading, reason
from ttcnet.models.loading import check_files, check_template
from ttcnet.run_folder import RunFolder, settings_of
from ttcnet.storage.locking import owned
from ttcnet.storage.writing import write_json, write_lines
from ttcnet.tasks import NAMES
from ttcnet.terminal.console import tell

from ..engines.local import Local
from .answer_cache import AnswerCache
from .model import TTCNetLM
from .our_tasks import config, is_ours

ALLOWED = "HF_ALLOW_CODE_EVAL"  # the package evaluate runs code only if it is set
DEEPEST = 1000  # brackets
SEED = 1234  # lm_eval's own
LOGGERS = ("lm_eval.evaluator", "lm_eval.api.task")
SETTLED = (  # their messages, task by task, about options that are settled here
    "generation_kwargs: ", "Overwriting default num_fewshot of ", "Custom kwargs can be passed to `--metadata`",
)  # fmt: skip


@dataclass(frozen=True)
class LMEvalConfig:
    """Settings of an evaluation. A folder holds one, so that its answers are never those of another."""

    model: str
    tasks: tuple[str, ...]
    adapter: str | None = None
    horizon: int | None = None
    shots: int | None = None
    limit: int | None = None
    max_tokens: int | None = None
    chat: bool = False
    data: str | None = None


def evaluate(
    settings: LMEvalConfig,
    out: Path,
    *,
    batch: int = 8,
    device: str | None = None,
    run_code: bool = False,
    trust_remote_code: bool = False,
) -> str:
    """Evaluate, with the answers that `out` has already. Writes results.json, lm_eval.json (the report of
    lm_eval) and samples-TASK.jsonl (the texts that the model wrote, in tasks that generate); returns a table.

    Args:
        run_code: run programs that the model writes, on this machine.
        trust_remote_code: run code that comes with the model.
    """
    given = {"limit": settings.limit, "max_tokens": settings.max_tokens, "batch": batch, "shots": settings.shots}
    for field, value in given.items():
        if value is not None:
            check_integer(field, value, 0 if field == "shots" else 1, "Pass such a number.")
    if not settings.tasks:
        fail("tasks", "must name one at least", "none", "Name some, with commas between.", "missing")
    with owned(out), _running_code(run_code), _quietly():
        tell(f"Reading the tasks {', '.join(settings.tasks)} ...")
        tasks = _tasks(settings, run_code)
        tell(f"Loading {settings.model} ...")
        check_files(settings.model)
        with loading(settings.model):
            options = dict(batch_size=batch, trust_remote_code=trust_remote_code)
            model = TTCNetLM(settings.model, settings.adapter, settings.horizon, device, **options)
        check_template(settings.model, model.tokenizer)
        if settings.chat and model.tokenizer.chat_template is None:
            fail("model", "must have a chat template for --chat", settings.model, "Leave out --chat.", "chat-template")
        _check_settings(settings, model, out)
        answer_cache = AnswerCache(out, model.rank)
        model.keep(answer_cache)
        with _asking(settings.tasks):
            results = simple_evaluate(
                model=model,
                tasks=tasks,
                task_manager=TaskManager(include_defaults=False),
                num_fewshot=settings.shots,
                limit=settings.limit,
                apply_chat_template=settings.chat,
                gen_kwargs=None if settings.max_tokens is None else {"max_gen_toks": settings.max_tokens},
                torch_random_seed=SEED + answer_cache.found,  # samples that follow others are not drawn like them
                confirm_run_unsafe_code=run_code,
            )
        if results is None:
            return ""  # the first process has them
        _write(results, settings, model, out)
    return str(make_table(results)) + ("\n" + str(make_table(results, "groups")) if results.get("groups") else "")


def _tasks(settings: LMEvalConfig, run_code: bool) -> list[Any]:
    """The tasks and groups that are asked for, with their data."""
    needed = not all(Path(name).is_file() for name in settings.tasks)
    manager = TaskManager(include_defaults=needed)  # reading all of lm_eval's takes seconds
    found: list[Any] = []
    for name in settings.tasks:
        own = name not in manager.all_tasks and is_ours(name)
        if name not in manager.all_tasks and not Path(name).is_file() and not own:
            near = get_close_matches(name, [*manager.all_tasks, *NAMES])
            remedy = f"Did you mean {' or '.join(near)}?" if near else "List them with: lm_eval ls tasks"
            fail("tasks", "must be tasks of lm_eval or of ttcnet, or files of them", repr(name), remedy, "bad-task")
        entry = manager.task_index.get(name)
        if entry is not None and (entry.cfg or {}).get("unsafe_code") and not run_code:
            _refuse(name)  # before it is loaded, which tries to run a program already
        if not own and Path(name).is_file() and _depth(Path(name)) > DEEPEST:  # YAML's parser would end the process
            remedy = "Correct the file."
            fail("tasks", "must be whole YAML", f"{name}: more than {DEEPEST} brackets deep", remedy, "bad-task")
        try:
            loaded = manager.load(config(name, settings.data) if own else name)
        except yaml.YAMLError as error:
            remedy = "Correct the file."
            fail("tasks", "must be whole YAML", f"{name}: {' '.join(str(error).split())}", remedy, "bad-task")
        except OSError as error:
            remedy = "Check the network, or name tasks whose data are here."
            rule = "must have data that can be read"
            fail("tasks", rule, f"{name}: {' '.join(str(error).split())}", remedy, "bad-task")
        except Exception as error:  # lm_eval trusts the file to be a task, and may raise anything
            if isinstance(error, TTCNetError):
                raise
            remedy = "Correct the file."
            fail("tasks", "must be tasks that lm_eval can load", f"{name}: {reason(error)}", remedy, "bad-task")
        for task in loaded["tasks"].values():
            if getattr(task, "UNSAFE_CODE", False) and not run_code:
                _refuse(task.task_name)
        groups = loaded["groups"]
        found += [groups[name]] if name in groups else loaded["tasks"].values()
    return found


def _depth(path: Path) -> int:
    """How many brackets are open at once."""
    steps = ((letter in "[{") - (letter in "]}") for letter in path.read_text(errors="replace"))
    return max(accumulate(steps, initial=0))


@contextmanager
def _asking(tasks: tuple[str, ...]) -> Iterator[None]:
    """Turns errors that lm_eval raises while it loads tasks and their data into errors of ours."""
    try:
        yield
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise  # nothing of the tasks'
    except Exception as error:
        if isinstance(error, TTCNetError):
            raise
        remedy = "Correct the task or its data."
        rule = "must be such as lm_eval can ask of this model"
        fail("tasks", rule, f"{', '.join(tasks)}: {reason(error)}", remedy, "bad-task")


def _refuse(task: str) -> NoReturn:
    remedy = "Pass --run-code to run them on this machine, best inside a container; or leave the task out."
    fail("tasks", "must not run programs that a model writes, unless told to", repr(task), remedy, "bad-task")


@contextmanager
def _running_code(allowed: bool) -> Iterator[None]:
    if not allowed:
        yield
        return
    before, os.environ[ALLOWED] = os.environ.get(ALLOWED), "1"
    try:
        yield
    finally:
        del os.environ[ALLOWED]
        os.environ.update({} if before is None else {ALLOWED: before})


@contextmanager
def _quietly() -> Iterator[None]:
    """Hides the messages in SETTLED, and passes our commit to lm_eval, which would ask git in the working folder; git
    prints an error if that is no checkout. All other messages are shown."""
    before, evaluator.get_git_commit_hash = evaluator.get_git_commit_hash, commit
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_news)
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = before
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not any(text in record.getMessage() for text in SETTLED)


def _check_settings(settings: LMEvalConfig, model: TTCNetLM, out: Path) -> None:
    """Compare settings and weights with those of the stored answers; if there are no answers, store the settings."""
    facts = Local(model.model, model.tokenizer, name=settings.model).facts()
    folder = RunFolder(out, asdict(settings) | facts, what="evaluation", packages=["lm_eval"])
    if any(out.glob("answers-*.jsonl")):
        folder.compare(settings_of(out))
    elif is_first_process():
        folder.write_settings()


def _write(results: dict[str, Any], settings: LMEvalConfig, model: TTCNetLM, out: Path) -> None:
    for task, samples in results.pop("samples").items():
        if results["configs"][task]["output_type"] == "generate_until":
            write_lines(out / f"samples-{task}.jsonl", map(_plain, samples))
    write_json(out / "lm_eval.json", _plain(results))
    figures = {
        task: {name: value for name, value in values.items() if isinstance(value, float | int)}
        for task, values in results["results"].items()
    }
    record = {
        "results": figures,
        "settings": asdict(settings),
        "horizon": model.horizon,
    }
    write_json(out / "results.json", record | provenance("lm_eval"))


def _plain(content: Any) -> Any:
    """Convert a value into one that JSON can hold."""
    return json.loads(json.dumps(content, default=handle_non_serializable))
