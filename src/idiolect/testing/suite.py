"""`check_method`: all checks of a method, in order, and what they found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..contract import Method, methods
from ..core.errors import ConformanceError, UnknownNameError
from ..core.registry import describe
from . import acting, checks, engine_checks

CHECKS: dict[str, Callable[[Method], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        checks.check_round_trip,
        checks.check_pure,
        checks.check_messages,
        checks.check_one_model,
        checks.check_after_local,
        checks.check_unseen_clients,
        checks.check_no_test_data,
        checks.check_repeatable,
        checks.check_identities,
        acting.check_acts,
        checks.check_momentum,
        checks.check_poison,
        engine_checks.check_client_order,
        engine_checks.check_through_bytes,
        engine_checks.check_devices,
        checks.check_networks,
        checks.check_resume,
        checks.check_batchnorm,
        engine_checks.check_network,
        checks.check_absent_clients,
        engine_checks.check_stacking,
        engine_checks.check_workers,
    )
}
"""All checks by name, to parametrise a test over; the quick ones, whose errors are the clearest, come first."""


@dataclass(frozen=True)
class Conformance:
    """What a method was checked for, and kept to.

    >>> print(Conformance("fedavg", ("round_trip", "repeatable")))
    fedavg keeps the contract (2 checks):
      round_trip  The expression that describes a method builds it again.
      repeatable  The same plan gives the same bits twice.
    """

    method: str
    passed: tuple[str, ...]

    def __str__(self) -> str:
        width = max(map(len, self.passed))
        lines = (f"  {name:{width}}  {_rule(name)}" for name in self.passed)
        return "\n".join([f"{self.method} keeps the contract ({len(self.passed)} checks):", *lines])


def _rule(check: str) -> str:
    return (CHECKS[check].__doc__ or "").partition("\n")[0]


def check_method(method: str | Method, only: Sequence[str] = ()) -> Conformance:
    """Run the conformance suite (or some of its checks) on a method: what was checked. Raises `ConformanceError` at
    the first rule that is broken.

    >>> print(check_method("fedprox(mu=0.5)", ["round_trip", "messages"]))
    fedprox(mu=0.5) keeps the contract (2 checks):
      round_trip  The expression that describes a method builds it again.
      messages    Only declared slots leave a client; `download` changes nothing and tells everybody the same twice.
    """
    built = methods.build(method)
    if unknown := sorted(set(only) - set(CHECKS)):
        raise UnknownNameError(f"there is no check {', '.join(unknown)}; the checks are {', '.join(CHECKS)}")
    for name in only or CHECKS:
        try:
            CHECKS[name](built)
        except ConformanceError as error:
            raise ConformanceError(
                f"{describe(built)} fails the check {name!r}: {error} (the rule: {_rule(name)})"
            ) from error
        except Exception as error:
            error.add_note(f"{describe(built)} fails the check {name!r}: {_rule(name)}")
            raise
    return Conformance(describe(built), tuple(only or CHECKS))
