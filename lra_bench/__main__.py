"""`python -m lra_bench` is `lra-bench`."""

from lra_bench.cli import main

if __name__ == "__main__":
    main()
