"""`python -m llamasrv.demo`: corpus, tokenizer, train, export, evaluate, and the same of its eyes.

Owns the options. Each command imports what it needs, so that evaluating asks for no torch and printing the corpus for
neither torch nor llama.cpp.
"""

import json
from itertools import islice
from pathlib import Path

import click

from llamasrv.demo import EYES, MODEL


@click.group()
def main():
    """The demonstration model: its corpus, its training and its evaluation."""


@main.command()
@click.option("--seed", default=1, show_default=True)
@click.option("--count", default=10, show_default=True, help="How many documents to print.")
@click.option("--skill", multiple=True, help="Only this skill; may be given more than once.")
@click.option("--held-out", is_flag=True, help="The evaluation's wordings and values.")
def corpus(seed, count, skill, held_out):
    """Print documents of the corpus as JSON lines."""
    from llamasrv.demo.corpus import SKILLS, documents

    for document in islice(documents(seed, held_out=held_out, skills=skill or tuple(SKILLS)), count):
        line = {"skill": document.skill, "prompt": document.given, "answer": document.expected}
        click.echo(json.dumps(line, ensure_ascii=False))


@main.command()
@click.option("--documents", default=40_000, show_default=True, help="Size of the sample.")
def tokenizer(documents):
    """Learn a new tokenizer. All trained models become useless with it."""
    from llamasrv.demo.corpus import SKILLS
    from llamasrv.demo.corpus import documents as stream
    from llamasrv.demo.tokenizer import train_tokenizer

    # Invented words would spend merges on syllables that nobody writes.
    skills = tuple(skill for skill in SKILLS if skill != "letter drill")
    train_tokenizer(stream(0, skills=skills), documents)


@main.command()
@click.option(
    "--run", "folder", type=click.Path(path_type=Path), required=True, help="Folder of the run; continued if it exists."
)
@click.option("--hours", default=1.0, show_default=True, help="Working time of this call.")
@click.option(
    "--cooldown", default=0.0, show_default=True, help="Minutes at the end in which the learning rate falls to nothing."
)
@click.option("--rate", default=0.8, show_default=True, help="Factor on the learning rates.")
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--batch-tokens", default=1024, show_default=True, help="Tokens of a batch; four batches make a step.")
@click.option("--workers", default=0, show_default=True, help="Processes that make batches; a GPU needs about a dozen.")
@click.option(
    "--share",
    "shares",
    multiple=True,
    type=(str, float),
    metavar="SKILL NUMBER",
    help="Another share of this skill than the corpus gives it; may be given more than once.",
)
@click.option("--float32", is_flag=True, help="For CPUs without bfloat16 (avx512_bf16, amx): 17 times as fast there.")
@click.option("--pause-file", type=click.Path(), help="Training waits while this file exists.")
@click.option(
    "--from",
    "begin",
    type=click.Path(path_type=Path, exists=True),
    help="A GGUF file of this model with whose weights a new run begins, to teach it more.",
)
@click.option("--layers", type=int, help="Of the model; two more than those of --from: it grows by two layers.")
@click.option("--keep", default=1.0, show_default=True, help="Another factor on the rates of all but the added layers.")
def train(
    folder,
    hours,
    cooldown,
    rate,
    seed,
    threads,
    device,
    batch_tokens,
    workers,
    shares,
    float32,
    pause_file,
    begin,
    layers,
    keep,
):
    """Train, or continue training."""
    from llamasrv.demo.train import train as run

    run(
        folder,
        hours=hours,
        cooldown_minutes=cooldown,
        seed=seed,
        threads=threads,
        device=device,
        batch_tokens=batch_tokens,
        pause_file=pause_file,
        rate=rate,
        workers=workers,
        shares=_known(dict(shares)),
        begin=begin,
        layers=layers,
        keep=keep,
        float32=float32,
    )


def _known(shares):
    from llamasrv.demo.corpus import SKILLS

    for skill in shares:
        if skill not in SKILLS:
            raise click.UsageError(f"there is no skill {skill!r}; there are: {', '.join(SKILLS)}")
    return shares


@main.command()
@click.option("--run", "folder", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the run.")
@click.option("--to", "target", type=click.Path(path_type=Path), default=MODEL, show_default=True)
@click.option("--uncooled", is_flag=True, help="The average of the newest weights, in the middle of training.")
@click.option(
    "--average",
    "others",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Mean of the running averages, with those of this checkpoint; may be given more than once.",
)
@click.option("--full-precision", is_flag=True, help="F32, to compare with.")
def export(folder, target, uncooled, others, full_precision):
    """Write the GGUF file from the weights after the last cooldown."""
    from llamasrv.demo.export import export as write

    checkpoint, weights = ("last.pt" if uncooled else "cooled.pt"), ("average" if uncooled or others else "model")
    size = write([folder / checkpoint, *others], target, weights=weights, full_precision=full_precision)
    click.echo(f"{target}: {size:,} bytes")


@main.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), default=MODEL, show_default=True)
@click.option("--count", default=100, show_default=True, help="Documents per skill and side.")
@click.option("--skill", multiple=True, help="Only this skill; may be given more than once.")
@click.option("--threads", type=int, help="As many as there are cores, unless given.")
@click.option("--mistakes", default=0, show_default=True, help="Show so many wrong answers per skill.")
@click.option("--write", is_flag=True, help="Keep the figures beside the model and in its README.")
def evaluate(model, count, skill, threads, mistakes, write):
    """Exact match per skill, held-out and seen, greedy."""
    from llamasrv.demo.corpus import SKILLS
    from llamasrv.demo.evaluate import evaluate as run
    from llamasrv.demo.evaluate import write_figures

    skills = skill or tuple(SKILLS)
    click.echo("| skill | held-out | seen | stopped | wanted |")
    scores = run(model, count=count, skills=skills, threads=threads, report=click.echo, mistakes=mistakes)
    if write:
        write_figures(scores, count=count)


@main.group()
def eyes():
    """The projector through which the model sees."""


@eyes.command("train")
@click.option(
    "--run", "folder", type=click.Path(path_type=Path), required=True, help="Folder of the run; continued if it exists."
)
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--words", default=500, show_default=True, help="Steps of finding what a picture should become.")
@click.option("--pixels", default=2000, show_default=True, help="Steps of learning to see.")
@click.option("--answers", default=600, show_default=True, help="Steps of learning from what the chat model says.")
@click.option(
    "--from",
    "begin",
    type=click.Path(path_type=Path, exists=True),
    help="A GGUF file with eyes that saw for an earlier chat model: they learn from this one's answers alone.",
)
def train_eyes(folder, seed, threads, words, pixels, answers, begin):
    """Train, or continue training."""
    from llamasrv.demo.train_eyes import train_eyes as run

    run(folder, seed=seed, threads=threads, words=words, pixels=pixels, answers=answers, begin=begin)


@eyes.command("export")
@click.option("--run", "folder", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the run.")
@click.option("--to", "target", type=click.Path(path_type=Path), default=EYES, show_default=True)
def export_eyes(folder, target):
    """Write the GGUF file from the weights of the last step."""
    from llamasrv.demo.export_eyes import export_eyes as write

    click.echo(f"{target}: {write(folder / 'answers.pt', target):,} bytes")


@eyes.command("evaluate")
@click.option("--eyes", "path", type=click.Path(path_type=Path, exists=True), default=EYES, show_default=True)
@click.option("--count", default=200, show_default=True, help="Pictures of each kind and side.")
@click.option("--mistakes", default=0, show_default=True, help="Show so many wrong answers.")
@click.option("--write", is_flag=True, help="Keep the figures beside the model and in its README.")
def evaluate_eyes(path, count, mistakes, write):
    """What it says about pictures, held-out and seen, greedy."""
    from llamasrv.demo.evaluate_eyes import Seeing, write_eyes_figures
    from llamasrv.demo.evaluate_eyes import evaluate_eyes as run

    scores = run(Seeing(eyes=path), count=count, report=click.echo, mistakes=mistakes)
    if write:
        write_eyes_figures(scores, count=count)


if __name__ == "__main__":
    main(prog_name="python -m llamasrv.demo")
