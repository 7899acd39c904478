"""A CTranslate2 folder as a package for Argos Translate and LibreTranslate."""

from __future__ import annotations

import zipfile
from pathlib import Path

from cbmi.data.languages import base_code
from cbmi.files import to_json
from cbmi.inference.exported import SHARED

VERSION = "1.0"  # of the package
ARGOS_VERSION = "1.9.0"  # the oldest that it is for
NAMES = {
    **{"ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech"},
    **{"da": "Danish", "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto"},
    **{"es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French"},
    **{"ga": "Irish", "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian"},
    **{"it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian"},
    **{"ms": "Malay", "nb": "Norwegian", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese"},
    **{"ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian"},
    **{"sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu"},
    **{"vi": "Vietnamese", "zh": "Chinese"},
}


def write_package(folder: Path, languages: tuple[str, str], card: str, output: Path) -> None:
    """Zip a verified CTranslate2 folder; the name of the package says its languages."""
    source, target = (base_code(code) for code in languages)
    name = f"translate-{source}_{target}-{VERSION.replace('.', '_')}"
    metadata = {
        "package_version": VERSION,
        "argos_version": ARGOS_VERSION,
        "from_code": source,
        "from_name": NAMES.get(source, source),
        "to_code": target,
        "to_name": NAMES.get(target, target),
    }
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(f"{name}/metadata.json", to_json(metadata))
        package.writestr(f"{name}/README.md", card)
        package.write(folder / SHARED, f"{name}/sentencepiece.model")
        for file in sorted(folder.iterdir()):
            if file.name in ("model.bin", "config.json") or "vocabulary" in file.name:
                package.write(file, f"{name}/model/{file.name}")
