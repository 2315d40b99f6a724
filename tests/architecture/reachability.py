"""What nothing reaches: event types, streams, settings, codes, fields and calls without a user.

Found in the source, by name. A name counts as used where the syntax around it shows the use: an
event type is handled by the first argument of `.on(...)` and published by any other mention of it;
a code is raised by a call that it is an argument of; a setting is read as an attribute of something
other than `self`. What a run really publishes and raises is compared in
tests/acceptance/test_reached.py.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

# Not the code of a run: demonstrations, measurements and the venues' simulators.
NOT_A_RUN = ("verify/", "simulators/", "cli/lanes.py")
HANDLED, PUBLISHED = "handled", "published"
_KINDS = (ast.Constant, ast.Attribute, ast.Name, ast.Call, ast.Assign)
N = TypeVar("N", bound=ast.AST)


class Mention(NamedTuple):
    """A node, the parent of each node, and the file it stands in."""

    node: ast.AST
    parents: Mapping[ast.AST, ast.AST]
    file: str

    @property
    def parent(self) -> ast.AST:
        return self.parents[self.node]

    def around(self) -> Iterator[ast.AST]:
        """Yield the nodes around it, the innermost first."""
        node: ast.AST | None = self.node
        while (node := self.parents.get(node)) is not None:  # type: ignore[arg-type]
            yield node

    def inside(self, *names: str) -> bool:
        """Return whether it stands in a class, function or assignment of one of these names."""
        return any(not _bound(each).isdisjoint(names) for each in self.around())

    def nearest(self, kind: type[N]) -> N | None:
        return next((each for each in self.around() if isinstance(each, kind)), None)


class Sources:
    """Parsed files by their path below the package; `planted` adds or replaces some."""

    def __init__(self, root: Path, planted: Mapping[str, str] | None = None) -> None:
        files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
        texts = {file: path.read_text("utf-8") for file, path in files.items()}
        self.trees = {file: ast.parse(text) for file, text in {**texts, **(planted or {})}.items()}
        self.mentions: list[Mention] = []
        for file, tree in self.trees.items():
            parents: dict[ast.AST, ast.AST] = {}
            left: deque[ast.AST] = deque([tree])
            while left:
                node = left.popleft()
                for child in ast.iter_child_nodes(node):
                    parents[child] = node
                    left.append(child)
                if isinstance(node, _KINDS):
                    self.mentions.append(Mention(node, parents, file))
        self.strings = [each for each in self.mentions if isinstance(each.node, ast.Constant)]
        self.attributes = [
            each
            for each in self.mentions
            if isinstance(each.node, ast.Attribute) and isinstance(each.node.ctx, ast.Load)
        ]

    def run(self, mentions: Iterable[Mention]) -> Iterator[Mention]:
        return (each for each in mentions if not each.file.startswith(NOT_A_RUN))


# --- event types ---------------------------------------------------------------------------------


def unreached_types(sources: Sources, names: Iterable[str]) -> list[str]:
    """Return `NAME is not published` and `NAME is not handled` for types of the catalogue."""
    uses: dict[str, set[str]] = {name: set() for name in names}
    constants = _event_type_constants(sources)
    for each in sources.run(sources.mentions):
        if each.file in ("events/catalogue.py", "events/payloads.py"):
            continue
        found = _type_name(each.node, constants)
        # Few texts name a type, and what surrounds a text takes a walk through its file.
        if not found or (found not in uses and not found.endswith("*")):
            continue
        kind = _use_of_type(each)
        for name in uses:
            if kind and (name == found or _matches(found, name, kind)):
                uses[name].add(kind)
    return [
        f"{name} is not {kind}"
        for name, kinds in uses.items()
        for kind in (PUBLISHED, HANDLED)
        if kind not in kinds
    ]


def _use_of_type(mention: Mention) -> str:
    parent = mention.parent
    if isinstance(parent, ast.Call) and _called(parent) == "EventType":
        return ""
    if isinstance(parent, ast.Compare) or isinstance(mention.node, ast.Name):
        return ""
    if isinstance(parent, ast.Call) and _called(parent) in ("on", "attach_watcher"):
        return HANDLED if parent.args and parent.args[0] is mention.node else ""
    if mention.inside("_ALERTED", "_HANDLED"):  # tables whose types are registered in a loop
        return HANDLED
    loop = mention.nearest(ast.For)
    if loop is not None and _registers(loop) and _within(mention.node, loop.iter):
        return HANDLED
    return PUBLISHED


def _registers(loop: ast.For) -> bool:
    return any(isinstance(each, ast.Call) and _called(each) == "on" for each in ast.walk(loop))


def _event_type_constants(sources: Sources) -> dict[str, str]:
    """Return the names of variables that hold an event type, with the type's name."""
    found = {}
    for each in sources.mentions:
        node = each.node
        match node:
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call() as call):
                if _called(call) == "EventType":
                    found[variable] = str(ast.literal_eval(call.args[0]))
    return found


def _type_name(node: ast.AST, constants: Mapping[str, str]) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Attribute) and node.attr == "name" and isinstance(node.value, ast.Name):
        return constants.get(node.value.id, "")
    return ""


def _matches(found: str, name: str, kind: str) -> bool:
    return kind == HANDLED and found.endswith("*") and name.startswith(found[:-1])


# --- streams -------------------------------------------------------------------------------------


def unreached_streams(sources: Sources, names: Iterable[str]) -> list[str]:
    """Return streams, by the name of their constant, without a publisher or a handler."""
    names = list(names)
    published, handled = set[str](), set[str]()
    for each in sources.run(sources.mentions):
        if not isinstance(each.node, ast.Name) or each.node.id not in names:
            continue
        call, loop = each.nearest(ast.Call), each.nearest(ast.For)
        if call is not None and _called(call) == "of" and call.args and call.args[0] is each.node:
            published.add(each.node.id)
        if call is not None and _called(call) == "on" and call.args and call.args[0] is each.node:
            handled.add(each.node.id)
        if loop is not None and _registers(loop) and _within(each.node, loop.iter):
            handled.add(each.node.id)
        if isinstance(each.parent, ast.IfExp):  # a stream or another: both are published
            published.add(each.node.id)
    return [f"{name} has no publisher" for name in names if name not in published] + [
        f"{name} has no handler" for name in names if name not in handled
    ]


# --- settings ------------------------------------------------------------------------------------


def unread_settings(sources: Sources, fields: Iterable[tuple[str, str]]) -> list[str]:
    """Return `Struct.field` of settings that are read only where they are defined and checked."""
    readers: dict[str, list[Mention]] = {}
    for each in sources.attributes:
        readers.setdefault(each.node.attr, []).append(each)  # type: ignore[attr-defined]
    return [
        f"{struct}.{field}"
        for struct, field in fields
        if not any(_reads_setting(each, struct) for each in readers.get(field, ()))
    ]


def _reads_setting(mention: Mention, struct: str) -> bool:
    node = mention.node
    if not isinstance(node, ast.Attribute):
        return False
    if mention.inside(struct):
        return not mention.inside("__post_init__")
    return not _of_self(node)


# --- codes ---------------------------------------------------------------------------------------


def unraised_codes(sources: Sources, codes: Iterable[str]) -> list[str]:
    """Return the codes that no call, no value of a table and no `yield` names."""
    raised = {
        str(each.node.value).split(" ")[0]  # type: ignore[attr-defined]
        for each in sources.run(sources.strings)
        if _raises(each)
    }
    return [code for code in codes if code not in raised]


def _raises(mention: Mention) -> bool:
    parent, node = mention.parent, mention.node
    if isinstance(parent, ast.Call):
        return node in parent.args
    if isinstance(parent, ast.Return):  # the reason of a refusal, whose code the pipeline raises
        return True
    if isinstance(parent, ast.Dict):
        return node in parent.values and not mention.inside("REASONS")
    if isinstance(parent, ast.Tuple):
        return not mention.inside("_ROWS", "_IN_NUMBERS", "_OF_THE_ACCOUNT")
    return False


# --- fields and calls ----------------------------------------------------------------------------


def unused_fields(
    sources: Sources, struct: str, fields: Iterable[str], receivers: Iterable[str]
) -> list[str]:
    """Return fields that no constructor sets, or that nobody reads from one of `receivers`."""
    names = set(receivers)
    written = {
        keyword.arg
        for each in sources.run(sources.mentions)
        if isinstance(each.node, ast.Call) and _called(each.node) == struct
        for keyword in each.node.keywords
    }
    read = {
        each.node.attr  # type: ignore[attr-defined]
        for each in sources.run(sources.attributes)
        if _last_name(each.node.value) in names  # type: ignore[attr-defined]
    }
    return [f"{struct}.{each} is not set" for each in fields if each not in written] + [
        f"{struct}.{each} is not read" for each in fields if each not in read
    ]


def uncalled_methods(sources: Sources, file: str, struct: str) -> list[str]:
    """Return public methods and properties of a class that nothing outside of it names."""
    methods = [
        node.name
        for cls in sources.trees[file].body
        if isinstance(cls, ast.ClassDef) and cls.name == struct
        for node in cls.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
    ]
    used = {
        each.node.attr  # type: ignore[attr-defined]
        for each in sources.run(sources.attributes)
        if not (each.file == file and each.inside(struct))
        and (not _of_self(each.node) or each.file.split("/")[0] == file.split("/")[0])
    }
    return [f"{struct}.{each}" for each in methods if each not in used]


# --- syntax --------------------------------------------------------------------------------------


def _bound(node: ast.AST) -> set[str]:
    """Return the names that a statement defines."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.Assign():
            return {each.id for each in node.targets if isinstance(each, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()


def _called(call: ast.Call) -> str:
    return _last_name(call.func)


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _of_self(node: ast.AST) -> bool:
    """Return whether it is an attribute of `self`."""
    return isinstance(node, ast.Attribute) and _last_name(node.value) in ("self", "cls")


def _within(node: ast.AST, whole: ast.AST) -> bool:
    return any(each is node for each in ast.walk(whole))
