"""Whether a command may write into a directory: new, the same run again, or refused with the difference named."""

from loopscope._errors import LoopscopeError, setting
from loopscope.store.differences import differences
from loopscope.store.layout import RunLayout
from loopscope.store.manifest import Manifest, ManifestDamageError, decode_manifest
from loopscope.store.records import DamageError, load_record

_NAMED = 3
"""How many differences a refusal spells out."""


def agreed_manifest(layout: RunLayout, wanted: Manifest) -> Manifest:
    """The manifest under which `wanted` may be measured in this directory, without touching it.

    That is the stored one where there is one: it may differ in provenance, and the records name its digest. A manifest
    that was deleted or damaged is replaced by `wanted` when the commit records show that they were measured under
    exactly that.

    Raises:
        LoopscopeError: the directory holds another run, or something that is no run at all.
    """
    agreed = _agreed(layout, wanted)
    # Only now, so that a run with other settings is refused for those and not for the files that they bring.
    layout.require_no_strangers(agreed.tables(), agreed.units())
    return agreed


def _agreed(layout: RunLayout, wanted: Manifest) -> Manifest:
    try:
        data = layout.manifest.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if wanted.digest not in _measured_under(layout, wanted):
            layout.require_free()
        return wanted
    except OSError as error:
        raise LoopscopeError(
            f"cannot read {layout.manifest} ({error.strerror}): mend that or choose another {setting('output')}"
        ) from error
    digests = _measured_under(layout, wanted)
    try:
        stored = decode_manifest(data, str(layout.path))
    except ManifestDamageError as error:
        if wanted.digest in digests:
            return wanted
        raise LoopscopeError(
            f"{layout.manifest} is damaged ({error}): restore it or choose another {setting('output')}"
        ) from error
    _refuse_differences(layout, stored, wanted)
    if digests and stored.digest not in digests:
        if wanted.digest in digests:
            return wanted
        raise LoopscopeError(
            f"{layout.manifest} was changed after the run began: restore it or choose another {setting('output')}"
        )
    return stored


def _measured_under(layout: RunLayout, wanted: Manifest) -> set[str]:
    """The digests of the manifests that the sound records of the directory name."""
    digests = set()
    for unit in wanted.units() if layout.units.is_dir() else ():
        try:
            digests.add(load_record(layout, unit).manifest_sha256)
        except DamageError:
            continue
    return digests


def _refuse_differences(layout: RunLayout, stored: Manifest, wanted: Manifest) -> None:
    found = differences(stored, wanted)
    if not found:
        return
    named = "; ".join(str(difference) for difference in found[:_NAMED])
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    repeat = f" or repeat: {' '.join(stored.command_line)}" if stored.command_line else ""
    raise LoopscopeError(f"{layout.path} holds another run ({named}{more}): choose another {setting('output')}{repeat}")
