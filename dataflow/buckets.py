"""Errors of the service of a bucket, for sources and sinks: what happened, and what its user can do."""

from collections.abc import Iterator
from contextlib import contextmanager

from dos_protocol.errors import DosError
from journal import ArchiveRefusedError, ArchiveUnavailableError
from journal.archive.bucket import S3Url


@contextmanager
def service_errors(
    url: S3Url, raised: type[DosError], needs: str, refused: type[DosError] | None = None
) -> Iterator[None]:
    """Raise `raised` if the service refuses a request (or `refused`) or cannot be reached. needs: "a source
    needs GetObject".
    """
    try:
        yield
    except ArchiveRefusedError as error:
        raise (refused or raised)(
            f"the bucket's service refused a request: {error.args[0]}",
            remedy="check the credentials, which every worker and the driver need (AWS_PROFILE,"
            f" AWS_ACCESS_KEY_ID, instance role), and the bucket's policy: {needs}",
        ) from error
    except ArchiveUnavailableError as error:
        at = url.endpoint or "AWS_ENDPOINT_URL_S3 or AWS"
        raise raised(
            f"the bucket's service cannot be reached: {error.args[0]}",
            remedy=f"check the endpoint ({at}) and the network; if the region has stopped, run it again: it"
            " resumes",
        ) from error
