"""``python -m spectral_bellman`` is the command ``sbm``."""

from spectral_bellman.commands.main import main

if __name__ == "__main__":
    main()
