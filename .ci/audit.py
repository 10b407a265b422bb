"""Looks up the pinned packages in PyPI's list of known vulnerabilities, with pip-audit.

Ends with 1 if a package has one. Without the list it says that nothing was audited, and ends with 0, or with 1 if
``AUDIT=required``. ``AUDIT_IGNORE`` has the ids of vulnerabilities that don't concern this package, with blanks between
them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request

SERVICE = os.environ.get("AUDIT_SERVICE", "https://pypi.org/pypi")
KNOWN = "jinja2/2.4.1"
"""A release that the list certainly has: mirrors of PyPI answer without it."""


def problem() -> str | None:
    """Return why the list can't be used; None: it can."""
    try:
        with urllib.request.urlopen(f"{SERVICE}/{KNOWN}/json", timeout=10) as answer:
            found = json.load(answer)
        return None if found["vulnerabilities"] else f"{SERVICE} answers without the list of vulnerabilities"
    except (OSError, ValueError, KeyError, TypeError) as e:
        return f"{SERVICE} has no list of vulnerabilities for this machine ({type(e).__name__}: {e})"


def main(uv: str, requirements: str) -> int:
    """Audit a file of pinned requirements. Return the exit status."""
    why = problem()
    if why is not None:
        print(f"not audited: {why}")
        return int(os.environ.get("AUDIT") == "required")
    ignored = [text for one in os.environ.get("AUDIT_IGNORE", "").split() for text in ("--ignore-vuln", one)]
    command = [uv, "tool", "run", "pip-audit==2.10.0", "-r", requirements, "--no-deps", "--disable-pip", "-f", "json"]
    ran = subprocess.run([*command, "--progress-spinner", "off", *ignored], capture_output=True, text=True)
    try:
        packages = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"pip-audit failed: {ran.stderr.strip()[-2000:]}")
        return 1
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    bad = [(one, found) for one in packages for found in one.get("vulns", ())]
    for one, found in bad:
        fixed = ", ".join(found["fix_versions"]) or "no release yet"
        print(f"{one['name']} {one['version']}: {found['id']}, fixed in {fixed}")
    if unknown:
        print(f"not audited, because the list doesn't know these releases: {', '.join(unknown)}")
    print(f"audited: {len(packages) - len(unknown)} of {len(packages)} packages, vulnerabilities: {len(bad)}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
