"""What can go wrong with an embedded cluster, said so that the reader knows what to do next."""


class EmbeddedError(Exception):
    """The embedded cluster cannot do what was asked; the message names the cause and the cure."""


class NoCluster(EmbeddedError):
    """There is no cluster in the directory asked for, or none is running there."""


class ClusterAlreadyRunning(EmbeddedError):
    """Another supervisor holds the directory."""


class StartFailed(EmbeddedError):
    """A child could not be brought up; the message carries the end of its log."""


class ControlRefused(EmbeddedError):
    """The running supervisor refused a request, or what came over the control socket was no request."""
