"""python -m anechoic: the command line."""

from anechoic.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
