"""Releases as bytes, to compare all of their digits."""

from anechoic.streaming.release import PARTS


def bytes_of(release):
    head = release.step, release.time, release.epsilon, release.delta, [*release]
    parts = [getattr(one, part) for one in release.estimates.values() for part in (*PARTS, "raw")]
    return repr((head, [part.shape for part in parts])).encode() + b"".join(part.tobytes() for part in parts)
