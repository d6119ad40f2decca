"""The commands of ``sbm``, a module each; ``main`` is the entry point."""
