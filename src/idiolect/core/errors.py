"""The exception tree. Every error says what was wrong, what is allowed and what to do.

IdiolectError
├── InputError            something the user gave cannot be used (exit code 2)
│   ├── UnknownNameError  no such method, data set, partition, model or option
│   ├── OptionError       an option's value is of the wrong kind or out of range
│   ├── DataError         the data cannot be used as they are
│   ├── ModelError        the network does not fit the data, the loss or the method
│   ├── UntrustedCodeError  a folder names code that this machine does not know
│   ├── ComposeError      these two methods cannot be wrapped around each other
│   └── RunFolderError    the run folder is occupied, foreign, damaged or not writable
├── TrainingError         nothing that the clients sent can be used (exit code 1)
├── ClusterError          a cluster cannot be used, or cannot go on
├── MissingExtraError     an optional dependency is not installed
└── ConformanceError      a method breaks the contract (raised by `check_method`)
"""


class IdiolectError(Exception):
    """The root of all errors that Idiolect raises on purpose."""


class InputError(IdiolectError):
    """Something the user gave cannot be used."""


class UnknownNameError(InputError):
    """No such method, data set, partition, model or option."""


class OptionError(InputError):
    """An option's value is of the wrong kind or out of range."""


class DataError(InputError):
    """The data cannot be used as they are."""


class ModelError(InputError):
    """The network does not fit the data, the loss or the method."""


class UntrustedCodeError(InputError):
    """A folder or a file of settings names code that this machine does not know."""


class ComposeError(InputError):
    """These two methods cannot be wrapped around each other."""


class RunFolderError(InputError):
    """The run folder is occupied, foreign, damaged or not writable."""


class TrainingError(IdiolectError):
    """Nothing that the clients sent can be used."""


class ClusterError(IdiolectError):
    """A cluster cannot be used, or cannot go on."""


class MissingExtraError(IdiolectError):
    """An optional dependency is not installed."""


class ConformanceError(IdiolectError):
    """A method breaks the contract."""
