"""`python -m dos_cli`: the same as the `dos` command."""

from dos_cli.main import main

if __name__ == "__main__":
    main()
