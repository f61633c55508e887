"""The result files of a finished OpenAI batch, written from its journal."""

from __future__ import annotations

from contextlib import suppress

from llamasrv.protocols.openai import batches as openai
from llamasrv.store.batches import BatchStore, StoredBatch, read_journal
from llamasrv.store.files import FileNotFound, FileStore
from llamasrv.web.jobs.batch_input import breathing


def write_files(files: FileStore, batches: BatchStore, batch: StoredBatch) -> StoredBatch:
    """Write the output file, and the error file of refused and failed requests. Creates no empty file."""
    delete_files(files, batch)  # of an earlier attempt
    made: dict[str, str | None] = {}
    for name, wanted in (("output", True), ("error", False)):
        chosen = (
            openai.answer_line(f"batch_req_{batch.id[6:]}{entry.n}", *entry[1:5])
            for entry in breathing(read_journal(batches.journal_of(batch)))
            if (entry.status is not None and entry.status < 400) is wanted
        )
        first = next(chosen, None)
        if first is None:
            made[name] = None
            continue
        id = _file_id(batch, name)
        with files.writing(batch.owner, filename=f"{batch.id}_{name}.jsonl", purpose="batch_output", id=id) as upload:
            upload.write(first)
            upload.write_all(chosen)
        made[name] = id
    return batch._replace(output_file=made["output"], error_file=made["error"])


def delete_files(files: FileStore, batch: StoredBatch) -> None:
    for name in ("output", "error"):
        with suppress(FileNotFound):
            files.delete(batch.owner, _file_id(batch, name))


def _file_id(batch: StoredBatch, name: str) -> str:
    """The same for each attempt to write the file."""
    return f"file-{batch.id.removeprefix('batch_')[:35]}{'0' if name == 'output' else '1'}"
