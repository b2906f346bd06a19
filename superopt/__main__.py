"""`python -m superopt`: the command line."""

from superopt.commands.main import main

if __name__ == "__main__":
    main()
