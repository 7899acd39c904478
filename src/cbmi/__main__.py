"""`python -m cbmi`, as torchrun starts it."""

from cbmi.cli import main

if __name__ == "__main__":
    main()
