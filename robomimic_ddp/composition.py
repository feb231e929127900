"""Files and words that a YAML config is composed of, as Hydra 1.3 reads them.

A file: `key: value`, a defaults list (`_self_`, `name`, `group: option`, `optional`, `override`,
`group@package`), a header `# @package`. A word: `key=value`, `+key=value`, `++key=value`, `~key`,
`group=option`. Sweeps, functions such as `range(1,3)` and interpolated defaults are Hydra's alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from robomimic_ddp import paths
from robomimic_ddp.errors import ConfigError

_INSTALL = "Install Hydra for that (pip install hydra-core), or write it out."
_HEADER = re.compile(r"\s*#\s*@package\s+(\S+)")
_WORD = re.compile(r"(~|\+\+|\+|)([^=\s]+)(?:=(.*))?", re.DOTALL)
_TEXTS = {"yes", "no", "on", "off", "y", "n"}
"""Flags in YAML 1.1, text for Hydra."""


class Word:
    """One override from a command line. Raises ConfigError for what only Hydra reads."""

    def __init__(self, text: str) -> None:
        found = _WORD.fullmatch(text)
        if found is None or (found[3] is None and found[1] != "~"):
            raise ConfigError(f"argument {text!r} is not key=value, +key=value or ~key.")
        self.text = text
        self.sign, self.key, self.given = found.groups()

    @property
    def is_of_hydra(self) -> bool:
        """About Hydra itself (its folders, its logs), of which nothing is here."""
        return re.match(r"hydra[./]", self.key) is not None

    @property
    def value(self) -> Any:
        text = (self.given or "").strip()
        quoted = text[:1] in ("'", '"')
        if re.fullmatch(r"\w+\(.*\)", text, re.DOTALL) or (
            "," in text and not quoted and text[0] not in "[{"
        ):
            raise ConfigError(
                f"{self.text!r} is a sweep or a function, which only Hydra reads. {_INSTALL}"
            )
        if not text or text.lower() in _TEXTS:
            return text
        text = text if quoted else _spaced(text)
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]

    def apply(self, config: DictConfig) -> None:
        """Sets, adds or takes away the key in `config`, whose other keys are fixed."""
        if self.sign == "~":
            self._delete(config)
            return
        value, adds = self.value, self.sign != ""
        present = _has(config, self.key)
        if self.sign == "+" and present and not isinstance(value, (dict, list)):
            raise ConfigError(
                f"{self.text!r} would add a key that is there. Write {self.key}=... to change it."
            )
        if not adds and not present:
            self._unknown(config)
        OmegaConf.update(config, self.key, value, merge=True, force_add=adds)

    def _delete(self, config: DictConfig) -> None:
        if not _has(config, self.key):
            self._unknown(config)
        above, _, name = self.key.rpartition(".")
        section = OmegaConf.select(config, above) if above else config
        if self.given is not None and section[name] != self.value:
            raise ConfigError(
                f"{self.text!r} would take away a key whose value is {section[name]!r}."
            )
        OmegaConf.set_struct(config, False)
        del section[name]
        OmegaConf.set_struct(config, True)

    def _unknown(self, config: DictConfig) -> None:
        known = list(_keys(OmegaConf.to_container(config)))
        near = difflib.get_close_matches(self.key, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"{self.text!r}: the composed config has no key {self.key!r}.{hint} (+{self.key}=... "
            "adds one.)"
        )


class Files:
    """The YAML files of `folder`; `words` that choose among them are put into `used`."""

    def __init__(self, folder: Path, words: Sequence[Word]) -> None:
        self.folder = folder
        self.used: list[Word] = []
        self._chosen: dict[str, Any] = {}
        self._added: list[Word] = []
        for word in words:
            group = word.key.split("@")[0]
            if "." not in group and (folder / group).is_dir():
                self.used.append(word)
                if word.sign == "+":
                    self._added.append(word)
                else:
                    self._chosen[word.key] = None if word.sign == "~" else word.value

    def parts(self, name: str) -> Iterator[DictConfig]:
        """Contents of the file `name` and of what it names, in the order in which they count."""
        yield from self._parts(name, None, name.rpartition("/")[0], "")
        for word in self._added:
            yield from self._option(word.key, word.value, "", "", self.folder)
        for group in self._chosen:
            raise ConfigError(
                f"{group}=... chooses among the files of {self.folder / group}, and the defaults "
                f"list of {name} has no {group}. +{group}=... adds it."
            )

    def _parts(
        self, name: str, place: str | None, group_as_written: str, above: str
    ) -> Iterator[DictConfig]:
        """`place`: the package written beside the name; `above`: that of the file that names it."""
        name = name[: -len(".yaml")] if name.endswith(".yaml") else name
        path = self.folder / f"{name}.yaml"
        content, header = self._read(path)
        group = name.rpartition("/")[0]
        package = place or header or group_as_written.replace("/", ".")
        package = _joined(above, package.replace("_group_", group.replace("/", ".")))
        defaults = content.pop("defaults", None) or []
        for entry in defaults:
            self._note_override(entry, group)
        if "_self_" not in defaults:
            defaults = [*defaults, "_self_"]
        for entry in defaults:
            if entry == "_self_":
                yield _nested(OmegaConf.create(content), package)
            else:
                yield from self._default(entry, group, package, path)

    def _default(self, entry: Any, group: str, package: str, path: Path) -> Iterator[DictConfig]:
        if isinstance(entry, str):
            name, _, place = entry.partition("@")
            written = name.lstrip("/").rpartition("/")[0]
            yield from self._parts(_path(group, name), place or None, written, package)
            return
        if not isinstance(entry, Mapping) or len(entry) != 1:
            raise ConfigError(
                f"{path}: {entry!r} in its defaults list is not understood. {_INSTALL}"
            )
        key, option = next(iter(entry.items()))
        kind, _, rest = str(key).rpartition(" ")
        if kind == "override" or rest.lstrip("/").startswith("hydra/"):
            return
        yield from self._option(rest, option, group, package, path, kind == "optional")

    def _option(
        self, key: str, option: Any, group: str, package: str, path: Path, optional: bool = False
    ) -> Iterator[DictConfig]:
        """The file or files `option` of the group `key`."""
        own, _, place = key.partition("@")
        chosen = _path(group, own) + (f"@{place}" if place else "")
        option = self._chosen.pop(chosen, option)
        for one in option if isinstance(option, list) else [option]:
            if one is None:
                continue
            if "${" in str(one) or one == "???":
                raise ConfigError(f"{path}: {key}: {one} cannot be chosen here. {_INSTALL}")
            name = f"{_path(group, own)}/{one}"
            if optional and not (self.folder / f"{name}.yaml").is_file():
                continue
            written = f"{own.lstrip('/')}/{one}".rpartition("/")[0]
            yield from self._parts(name, place or None, written, package)

    def _note_override(self, entry: Any, group: str) -> None:
        if isinstance(entry, Mapping):
            for key, option in entry.items():
                kind, _, name = str(key).rpartition(" ")
                if kind == "override" and not name.lstrip("/").startswith("hydra/"):
                    self._chosen.setdefault(_path(group, name), option)

    def _read(self, path: Path) -> tuple[dict, str | None]:
        """(content, package of the header)."""
        try:
            text = paths.regular(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            there = sorted(one.stem for one in path.parent.glob("*.yaml"))
            raise ConfigError(
                f"{path} cannot be read ({error}). Configs that are there: "
                f"{', '.join(there) or 'none'}."
            ) from error
        try:
            content = OmegaConf.create(text)
        except (OmegaConfBaseException, YAMLError) as error:
            raise ConfigError(f"{path}: {error}") from error
        if not isinstance(content, DictConfig):
            raise ConfigError(f"{path} holds a list; expected key: value.")
        headers = (_HEADER.match(line) for line in text.splitlines()[:10])
        header = next((found[1] for found in headers if found), None)
        return OmegaConf.to_container(content), header


def _spaced(text: str) -> str:
    """Hydra's {a:1} as YAML's {a: 1}; only where a key ends, so {a:b:c} keeps its second colon."""
    result, open_brackets, quote, in_key = "", [""], "", False
    for char in text:
        result += char
        if quote or char in "'\"":
            quote = "" if char == quote else quote or char
        elif char in "{[":
            open_brackets.append(char)
            in_key = char == "{"
        elif char in "}]":
            open_brackets.pop() if len(open_brackets) > 1 else None
            in_key = False
        elif char == ",":
            in_key = open_brackets[-1] == "{"
        elif char == ":" and in_key:
            result += " "
            in_key = False
    return result


def _path(group: str, name: str) -> str:
    """A name in a file of `group` (relative to it, or absolute), from the folder."""
    if name.startswith("/"):
        return name[1:]
    return f"{group}/{name}" if group else name


def _joined(above: str, package: str) -> str:
    if package.startswith("_global_"):
        return package[len("_global_") :].lstrip(".")
    if package == "_here_":
        return above
    return ".".join(part for part in (above, package) if part)


def _nested(content: DictConfig, package: str) -> DictConfig:
    for name in reversed(package.split(".") if package else ()):
        content = OmegaConf.create({name: content})
    return content


def _has(config: DictConfig, key: str) -> bool:
    section: Any = config
    for name in key.split("."):
        if not OmegaConf.is_dict(section) or name not in section:
            return False
        section = section._get_node(name)
    return True


def _keys(tree: Any, prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
