"""`python -m pyrocrowd` is the command `pyrocrowd`."""

from pyrocrowd.cli import main

if __name__ == "__main__":
    main()
