"""`python -m patchslim` is `patchslim`."""

from patchslim.cli.main import main

if __name__ == "__main__":
    main()
