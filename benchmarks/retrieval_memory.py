"""Peak memory of reading retrieval files of several GB.

    make bench-retrieval ARGS="--gigabytes 3"

Writes a train file of that size in the release's format (as many pairs a document as there), reads it in a process of
its own and prints that process's peak resident memory. The file is removed afterwards.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READ = """
import resource, sys, time
from pathlib import Path
from tasks.retrieval import RetrievalTask
from tasks import task_spec
task = RetrievalTask(task_spec("retrieval"))
started = time.perf_counter()
data = task.read(task.find(Path(sys.argv[1])))
seconds = time.perf_counter() - started
train = data.splits["train"]
print(len(train), len(train.inputs[0].tokens), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, seconds)
"""


def write_release(folder: Path, gigabytes: float) -> None:
    """Files of pairs among documents of 20 to 40 KB, each in about 16 pairs, as in the release."""
    rng = random.Random(0)
    num_pairs = max(16, int(gigabytes * 1e9 / 60_000))
    words = [("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9)))).encode() for _ in range(5_000)]
    documents = [b" ".join(rng.choices(words, k=rng.randint(3_100, 6_200))) for _ in range(num_pairs // 8)]
    for name, count in (("train", num_pairs), ("eval", 10), ("test", 10)):
        with (folder / f"new_aan_pairs.{name}.tsv").open("wb") as file:
            for _ in range(count):
                a, b = rng.randrange(len(documents)), rng.randrange(len(documents))
                file.write(b"%d.0\tP%d\tP%d\t%s\t%s\n" % (rng.randint(0, 1), a, b, documents[a], documents[b]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_release(Path(folder), arguments.gigabytes)
        size = (Path(folder) / "new_aan_pairs.train.tsv").stat().st_size / 1e9
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", READ, folder], check=True, capture_output=True, text=True)
        total = time.perf_counter() - started
    pairs, tokens, peak, seconds = map(float, done.stdout.split())
    print(f"file of {size:.2f} GB: {pairs:,.0f} pairs, {tokens / 1e6:,.0f} million tokens kept, each document once")
    print(f"peak resident memory {peak:,.0f} MB; read in {seconds:.1f} s ({total:.1f} s with start-up)")


if __name__ == "__main__":
    main()
