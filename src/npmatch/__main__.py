"""`python -m npmatch`, also from a source tree that is not installed."""

from npmatch.cli import main

if __name__ == "__main__":
    main()
