"""What would be installed, file by file: `make lock`, or `python tools/lock.py FOLDER [EXTRA…]`.

pip's constraints take no hashes, so pip itself is asked (a dry run with `constraints.txt`), and its report is written as

- `requirements.lock`, every package with the SHA-256 of its file: `pip install --require-hashes -r …` takes nothing else;
- `sbom.json`, the same list as a CycloneDX bill of materials, which audits read.

Both hold for this platform and this Python: another one takes other files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def resolved(extras: list[str]) -> list[dict[str, Any]]:
    """pip's report on what an installation from nothing would take, scdd itself left out."""
    wanted = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        asked = [
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(report),
            "-c",
            str(ROOT / "constraints.txt"),
            wanted,
        ]
        subprocess.run([*pip, *asked], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted((each for each in found if each["metadata"]["name"] != "scdd"), key=_name)


def _name(package: dict[str, Any]) -> str:
    return str(package["metadata"]["name"]).lower().replace("_", "-")


def _sha256(package: dict[str, Any]) -> str:
    hashes = package["download_info"].get("archive_info", {}).get("hashes", {})
    if "sha256" not in hashes:
        sys.exit(f"{_name(package)} comes without a SHA-256: install it from an index that has one.")
    return str(hashes["sha256"])


def lock(packages: list[dict[str, Any]]) -> str:
    """Requirements with hashes."""
    lines = [f"{_name(each)}=={each['metadata']['version']} --hash=sha256:{_sha256(each)}\n" for each in packages]
    return "# Written by `make lock` for one platform and one Python.\n" + "".join(lines)


def sbom(packages: list[dict[str, Any]]) -> dict[str, Any]:
    """A CycloneDX bill of materials."""
    components = []
    for each in packages:
        name, version = _name(each), each["metadata"]["version"]
        component = {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "hashes": [{"alg": "SHA-256", "content": _sha256(each)}],
        }
        licence = each["metadata"].get("license_expression") or each["metadata"].get("license")
        if licence and "\n" not in licence:
            component["licenses"] = [{"license": {"name": licence}}]
        components.append(component)
    about = {"component": {"type": "application", "name": "scdd"}}
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": about, "components": components}


def main(folder: str, *extras: str) -> None:
    """Write both files."""
    packages = resolved(list(extras))
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    (out / "requirements.lock").write_text(lock(packages), encoding="utf-8")
    (out / "sbom.json").write_text(json.dumps(sbom(packages), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{out / 'requirements.lock'}, {out / 'sbom.json'}: {len(packages)} packages\n")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["build/lock"]))
