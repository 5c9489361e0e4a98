"""The one error that reading bytes may raise."""


class WireError(ValueError):
    """Bytes that are not what they should be.

    ``reason`` is a short stable word for counters and drop events; ``str()`` is a sentence.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
