"""The command line: one thin module per command; :mod:`rocemu.cli.main` finds them."""


class CommandError(Exception):
    """What the user asked for did not come out: one plain sentence, exit code 1."""
