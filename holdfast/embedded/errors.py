"""Errors of an embedded cluster, with messages that name the cure."""


class EmbeddedError(Exception):
    """The embedded cluster cannot do what was requested; the message names the cause and the cure."""


class NoCluster(EmbeddedError):
    """There is no cluster in the directory, or it is not running."""


class ClusterAlreadyRunning(EmbeddedError):
    """Another supervisor holds the directory."""


class StartFailed(EmbeddedError):
    """A child could not be started; the message contains the end of its log."""


class ControlRefused(EmbeddedError):
    """The running supervisor refused a request, or did not answer."""
