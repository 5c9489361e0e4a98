"""You misused a queue pair; what the *peer* does wrong never raises, it is dropped or NAKed."""

__all__ = ["QPError"]


class QPError(ValueError):
    """A call that a queue pair's state, attributes or sizes do not allow (EINVAL, ENOMEM)."""
