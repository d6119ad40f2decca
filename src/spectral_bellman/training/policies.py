"""Published policies by version. Which one acts depends on numbers of rounds, never on timing."""

from concurrent.futures import Future
from typing import Any


class Policies:
    """The policy that each round has published. Round t acts on that of round t − staleness."""

    def __init__(self, staleness: int) -> None:
        self.staleness = staleness
        self._published: dict[int, Future[Any]] = {}

    def start(self, number: int, policies: tuple[Any, ...]) -> None:
        """Before round ``number``: the last ``staleness`` policies, the oldest first."""
        if len(policies) != self.staleness:
            raise ValueError(f"a staleness of {self.staleness} needs as many policies")
        for version, policy in enumerate(policies, number - self.staleness):
            self.publish(version, policy)

    def publish(self, version: int, policy: Any) -> None:
        """The policy of round ``version``; actors that wait for it go on."""
        self._future(version).set_result(policy)

    def expect(self, version: int) -> None:
        """Say that somebody is going to wait for a version that is not there yet."""
        self._future(version)

    def acting(self, number: int) -> Any:
        """The policy that acts in round ``number``; waits until it is published."""
        return self._future(number - self.staleness).result()

    def newest(self, number: int) -> Any:
        """The policy that was published last, before round ``number``."""
        return self._future(number - 1).result()

    def kept(self, number: int) -> tuple[Any, ...]:
        """What ``start`` needs to go on at round ``number``."""
        versions = range(number - self.staleness, number)
        return tuple(self._future(version).result() for version in versions)

    def forget(self, number: int) -> None:
        """Drop what nobody needs after round ``number``."""
        self._published.pop(number - self.staleness, None)

    def close(self) -> None:
        """Release everybody who waits, with an error."""
        for future in self._published.values():
            if not future.done():
                future.set_exception(RuntimeError("the run was stopped"))

    def _future(self, version: int) -> Future[Any]:
        return self._published.setdefault(version, Future())
