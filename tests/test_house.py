"""What keeps the house in order, beside the layers that import-linter checks.

Every check is a function from source to findings, so that it can be shown to find something.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import grimp
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import subprune
from subprune.methods import METHODS
from subprune.program.ops import FAMILIES, NORMS, PRODUCTS
from subprune.select.selector import Function
from subprune.structure.flow import RULES

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "subprune"
PAPER = ROOT / "paper" / "subprune_paper"
FOLDERS = ("subprune", "paper", "tests", "benchmarks", "examples", "experiments", "scripts")

MOST_AT_THE_TOP = 12  # modules, the front door included
LONGEST_CHAIN = 14  # modules, each importing the next, at once or inside a function
LONGEST_FUNCTION, LONGEST_FILE = 80, 450  # lines
MOST_BY_PLACE = 5  # values of a record that may be given without a name
LONG_LINE, MOST_LONG_LINES = 100, 0.02

# Where something computed may be kept: in records that never change.
CACHING = {"program/program.py", "structure/groups.py", "guarantees/bounds.py"}
# What runs a network, or asks for something that does.
RUNNING = {
    *("advance", "call", "curves", "find_groups", "forward", "gather", "go_to", "inspect"),
    *("looks", "model_outputs", "outcome", "rank", "record", "record_given", "remember", "run"),
    *("start", "visits", "walk"),
}
# Of the methods that come with the library; other tests register theirs.
NAMES = {name for name, m in METHODS.items() if not isinstance(m.selector, Function)}
# A name that is also a value of an option: a test of it counts only where a method is compared.
SHARED_NAMES = {"random"}
PARTIAL = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"}


def sources(folder: Path = LIBRARY) -> Iterator[tuple[str, str]]:
    """Every module below a folder: its path in it, and its text."""
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder).as_posix(), path.read_text()


def decorators(function: ast.FunctionDef) -> set[str]:
    return {ast.unparse(d).split("(")[0].split(".")[-1] for d in function.decorator_list}


def functions(text: str) -> Iterator[ast.FunctionDef]:
    return (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))


# ---- no peeping ------------------------------------------------------------------------------


def test_no_module_looks_into_dict() -> None:
    found = [
        f"{folder}/{path}:{number}"
        for folder in FOLDERS
        for path, text in sources(ROOT / folder)
        if f"{folder}/{path}" != "tests/test_house.py"
        for number, line in enumerate(text.splitlines(), 1)
        if "__dict__" in line
    ]
    assert not found, f"__dict__ at {found}: ask with vars() or getattr(), or keep the value"


# ---- properties do not run networks ----------------------------------------------------------


def properties_that_run(text: str) -> list[str]:
    """Properties whose body calls something that runs a network."""
    found = []
    for function in functions(text):
        if decorators(function) & {"property", "cached_property"}:
            called = {
                ast.unparse(n.func).split(".")[-1]
                for n in ast.walk(function)
                if isinstance(n, ast.Call)
            }
            found += [f"{function.name} calls {name}" for name in sorted(called & RUNNING)]
    return found


def cached(text: str) -> list[str]:
    """Properties that keep what they computed."""
    return [f.name for f in functions(text) if "cached_property" in decorators(f)]


def test_no_property_runs_a_network() -> None:
    found = {path: properties_that_run(text) for path, text in (*sources(), *sources(PAPER))}
    found = {path: names for path, names in found.items() if names}
    assert not found, f"make these functions, which are called: {found}"


def test_values_are_cached_in_unchanging_records_alone() -> None:
    found = {path: cached(text) for path, text in sources() if path not in CACHING}
    found = {path: names for path, names in found.items() if names}
    assert not found, f"cached properties outside {sorted(CACHING)}: {found}"


class _Nothing(TorchDispatchMode):
    """Refuses every operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was run")


def test_cached_properties_of_records_compute_no_tensor() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    structure = subprune.find_groups(model.eval(), torch.zeros(2, 3, 8, 8))
    seen = []
    for record in (structure.program, *structure.groups):
        for name, value in vars(type(record)).items():
            if isinstance(value, cached_property):
                with _Nothing():
                    getattr(record, name)
                seen.append(f"{type(record).__name__}.{name}")
    assert set(seen) == {"Program.chains", "Group.parts"}, "the records have others: name them here"


@pytest.mark.parametrize(
    "body", ["return self.program.run(x)", "self.x = record(self.model, x)\n        return self.x"]
)
@pytest.mark.parametrize("kind", ["property", "cached_property", "functools.cached_property"])
def test_a_property_that_runs_is_found(kind: str, body: str) -> None:
    text = f"class A:\n    @{kind}\n    def value(self):\n        {body}\n"
    assert properties_that_run(text)
    assert bool(cached(text)) == (kind != "property")


# ---- methods are rows of data ----------------------------------------------------------------


def _constants(node: ast.AST) -> set[str]:
    """Strings that stand in an expression, also in a tuple, a list or a set."""
    return {
        n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }


def _is_method(node: ast.AST) -> bool:
    """Whether an expression is, by its name, a method or the name of one."""
    return bool(re.search(r"\bmethod(_name|\.name)?$", ast.unparse(node)))


def _test_of_a_name(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        names = set().union(*map(_constants, sides))
        return bool(names & (NAMES - SHARED_NAMES)) or (bool(names) and any(map(_is_method, sides)))
    if isinstance(node, ast.MatchValue):
        return bool(_constants(node) & (NAMES - SHARED_NAMES))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        # a part of a name, with a hyphen: others are parts by chance
        parts = {c for c in _constants(node) if "-" in c.strip("-") and any(c in m for m in NAMES)}
        return node.func.attr in PARTIAL and (bool(parts) or _is_method(node.func.value))
    return False


def names_tested(text: str) -> list[str]:
    """Expressions that tell methods apart by name."""
    return [ast.unparse(n) for n in ast.walk(ast.parse(text)) if _test_of_a_name(n)]


def test_no_method_is_known_by_name() -> None:
    texts = [*sources(), *sources(PAPER), *sources(ROOT / "scripts"), *sources(ROOT / "examples")]
    found = {p: names_tested(text) for p, text in texts if p != "methods.py"}
    found = {path: tests for path, tests in found.items() if tests}
    assert not found, f"let the method's parts say what is asked here: {found}"


@pytest.mark.parametrize(
    "text",
    [
        "x == 'asym-in-change'",
        "x in ('act-grad', 'other')",
        "x not in {'layer-sampling'}",
        "method == 'random'",
        "options.method != 'mine'",
        "row.method.name == 'mine'",
        "x.endswith('in-change')",
        "method.startswith('l')",
        "match x:\n    case 'weight-norm':\n        pass",
    ],
)
def test_a_test_of_a_name_is_found(text: str) -> None:
    assert names_tested(text)


@pytest.mark.parametrize(
    "text", ["patches == 'random'", "x.endswith('%')", "method is None", "name in METHODS"]
)
def test_other_tests_are_not(text: str) -> None:
    assert not names_tested(text)


# ---- the layout ------------------------------------------------------------------------------


def test_few_modules_lie_at_the_top() -> None:
    top = sorted(path.name for path in LIBRARY.glob("*.py"))
    assert len(top) <= MOST_AT_THE_TOP, (
        f"{len(top)} modules lie at the top, at most {MOST_AT_THE_TOP} may; "
        f"give one of them a room: {top}"
    )


def is_command(path: str, text: str) -> bool:
    """Whether a file is a command, which has the name of what it is a command for."""
    return path.startswith("cli/") and any(f.name == "register" for f in functions(text))


def repeated(names: Iterable[str]) -> dict[str, int]:
    """Names that occur more than once."""
    return {name: count for name, count in Counter(names).items() if count > 1}


def test_a_file_name_occurs_once() -> None:
    names = [p.split("/")[-1] for p, text in sources() if not is_command(p, text)]
    found = repeated(name for name in names if name != "__init__.py")
    assert not found, f"these file names occur several times: {found}"


def test_commands_have_names_of_their_own() -> None:
    names = [p for p, text in sources() if is_command(p, text)]
    assert len(names) == len(set(names)) > 5
    assert is_command("cli/x.py", "def register(app): ...")
    assert not is_command("cli/x.py", "def load(): ...")


def classes(text: str) -> list[str]:
    return [n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef)]


def constants(text: str) -> list[str]:
    """Names in capitals that a module defines for others, too."""
    assigned = [
        target
        for n in ast.parse(text).body
        if isinstance(n, ast.Assign | ast.AnnAssign)
        for target in (n.targets if isinstance(n, ast.Assign) else [n.target])
    ]
    names = [n.id for n in assigned if isinstance(n, ast.Name)]
    return [name for name in names if name.isupper() and not name.startswith("_")]


def test_a_class_or_constant_has_a_name_of_its_own() -> None:
    found = repeated(name for _, text in sources() for name in classes(text))
    assert not found, f"say in the name which is meant: {found}"
    others = [text for path, text in sources() if not is_command(path, text)]
    found = repeated(name for text in others for name in constants(text))
    assert not found, f"say in the name which is meant, or begin it with an underscore: {found}"


def test_repeated_names_are_found() -> None:
    text = "class A: ...\nclass B:\n    class A: ...\nX: int = 1\nX, _Y, z = 1, 2, 3\nX = 2"
    assert repeated(classes(text)) == {"A": 2}
    assert repeated(constants(text)) == {"X": 2}


def long_functions(text: str) -> dict[str, int]:
    lengths = {f.name: (f.end_lineno or 0) - f.lineno + 1 for f in functions(text)}
    return {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION}


def test_functions_and_files_are_short() -> None:
    found = {path: long_functions(text) for path, text in sources()}
    found = {path: names for path, names in found.items() if names}
    assert not found, f"more than {LONGEST_FUNCTION} lines: split {found}"
    files = {path: len(text.splitlines()) for path, text in sources()}
    files = {path: length for path, length in files.items() if length > LONGEST_FILE}
    assert not files, f"more than {LONGEST_FILE} lines: divide {files}"


def test_a_long_function_is_found() -> None:
    body = "    x = 1\n" * LONGEST_FUNCTION
    assert long_functions(f"def f():\n{body}") == {"f": LONGEST_FUNCTION + 1}
    assert not long_functions(f"def f():\n{body[:-10]}")


# Locals that say nothing of what they hold: there were 86 of them.
VAGUE = {"found"}


def vague(text: str) -> list[str]:
    """Where a variable or an argument has such a name."""
    names = (
        (n.id if isinstance(n, ast.Name) else n.arg, n.lineno)
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Name | ast.arg)
    )
    return [f"{name} in line {line}" for name, line in names if name in VAGUE]


def test_no_variable_has_a_name_that_says_nothing() -> None:
    found = {path: vague(text) for path, text in sources()}
    found = {path: names for path, names in found.items() if names}
    assert not found, f"call them what they hold: {found}"
    assert vague("found = 1") == ["found in line 1"]
    assert vague("def f(found): ...") == ["found in line 1"]


# ---- records ---------------------------------------------------------------------------------


def positional(record: ast.ClassDef) -> int:
    """How many values of a data class may be given without a name."""
    decorator = next(
        (ast.unparse(d) for d in record.decorator_list if "dataclass" in ast.unparse(d)), ""
    )
    if not decorator or "kw_only=True" in decorator:
        return 0
    fields = [n for n in record.body if isinstance(n, ast.AnnAssign)]
    kinds = [ast.unparse(n.annotation) for n in fields]
    kinds = kinds[: kinds.index("KW_ONLY")] if "KW_ONLY" in kinds else kinds
    return sum("ClassVar" not in kind for kind in kinds)


def records(text: str) -> dict[str, int]:
    return {n.name: positional(n) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef)}


def test_records_of_many_fields_are_made_by_name() -> None:
    found = {
        f"{path}: {name}": count
        for path, text in sources()
        for name, count in records(text).items()
        if count > MOST_BY_PLACE
    }
    assert not found, f"more than {MOST_BY_PLACE} values by their place, make it kw_only: {found}"


def test_values_by_place_are_counted() -> None:
    body = "    a: int\n    kind: ClassVar[str] = ''\n    b: int = 0\n"
    assert records(f"@dataclass(frozen=True)\nclass A:\n{body}") == {"A": 2}
    assert records(f"@dataclass\nclass A:\n{body}    _: KW_ONLY\n    c: int = 0") == {"A": 2}
    assert records(f"@dataclass(kw_only=True)\nclass A:\n{body}") == {"A": 0}
    assert records(f"class A:\n{body}") == {"A": 0}


# ---- operations are known in one place ----------------------------------------------------------

# The table of operations, and those who carry labels through them.
KNOWING = ("program/ops.py", "structure/flow.py", "structure/rules/")


def operations_tested(text: str) -> list[str]:
    """Comparisons of a `.kind` with the name of an operation."""
    known = {*PRODUCTS, *NORMS, *RULES, *(kind for family in FAMILIES.values() for kind in family)}

    def tested(node: ast.AST) -> list[ast.AST]:
        """What is compared, where that is a `.kind` and something else."""
        sides: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *(case.pattern for case in node.cases)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            sides = [node.func.value, *node.args] if node.func.attr in PARTIAL else []
        kinds = [x for x in sides if isinstance(x, ast.Attribute) and x.attr in ("kind", "name")]
        return sides if kinds else []

    return [
        ast.unparse(n)
        for n in ast.walk(ast.parse(text))
        if any({_base(c) for c in _constants(x)} & known for x in tested(n)) or _of_pytorch(n)
    ]


def _base(name: str) -> str:
    """``aten.add.Tensor`` → ``add``; other names as they are."""
    return name.split(".")[1] if name.startswith("aten.") else name


def _of_pytorch(node: ast.AST) -> bool:
    """Whether this is a set, list or tuple of PyTorch's operations, or a comparison with one."""
    inside = {
        ast.Compare: lambda n: [n.left, *n.comparators],
        ast.Set: lambda n: n.elts,
        ast.List: lambda n: n.elts,
        ast.Tuple: lambda n: n.elts,
    }
    parts = inside.get(type(node), lambda n: [])(node)
    return any(ast.unparse(x).startswith("torch.ops.aten.") for x in parts)


def test_operations_are_told_apart_in_the_table_alone() -> None:
    found = {p: operations_tested(text) for p, text in sources() if not p.startswith(KNOWING)}
    found = {path: tests for path, tests in found.items() if tests}
    assert not found, f"give the operation a row in program/ops.py, and ask that: {found}"


@pytest.mark.parametrize(
    "text",
    [
        "op.kind == 'view'",
        "self.op.kind in ('addmm', 'mm')",
        "op.kind.startswith('view')",
        "match op.kind:\n    case 'view' | 'relu':\n        pass",
        "op.name != 'aten.add.Tensor'",
        "func == torch.ops.aten.add.Tensor",
        "LOOK_UPS = {torch.ops.aten.embedding.default}",
    ],
)
def test_a_test_of_an_operation_is_found(text: str) -> None:
    assert operations_tested(text)
    assert not operations_tested("group.kind == 'stream'")
    assert not operations_tested("torch.ops.aten.reshape.default(*args)")


def positions(text: str) -> list[str]:
    """Arguments of an operation that are read by their place: ``op.args[1]``, or ``args[1]`` in a
    function that is given an operation; and loops over them.
    """
    places = []
    for function in functions(text):
        given = {a.arg for a in function.args.args}
        own = {"args"} if {"op", "args"} <= given else set()
        for node in ast.walk(function):
            read = node.value if isinstance(node, ast.Subscript) else None
            if isinstance(node, ast.comprehension | ast.For):
                read = node.iter
            if isinstance(read, ast.Attribute) and read.attr in ("args", "kwargs"):
                owner = ast.unparse(read.value).split(".")[-1]
                places += [ast.unparse(read)] * (owner in ("op", "conv", "self"))
            elif isinstance(read, ast.Name) and read.id in own:
                places.append(ast.unparse(node))
    return places


def test_arguments_are_read_by_name() -> None:
    found = {path: positions(text) for path, text in sources() if path != "program/ops.py"}
    found = {path: places for path, places in found.items() if places}
    assert not found, f"read them with program.ops.argument, by name: {found}"


def test_an_argument_by_place_is_found() -> None:
    assert positions("def f(op):\n    return op.args[1]")
    assert positions("def f(op):\n    return [a for a in op.args]")
    assert positions("def run(op, args, kwargs):\n    return args[0]")
    assert not positions("def f(op):\n    return argument(op, 'input'), given(op.args)")
    assert not positions("def call(*args):\n    return args[0]")


# ---- imports ---------------------------------------------------------------------------------


def longest_chain(imports: Mapping[str, set[str]]) -> list[str]:
    """The longest path through a graph of imports; modules that import each other are refused."""
    chains: dict[str, list[str]] = {}

    def chain(module: str, above: tuple[str, ...]) -> list[str]:
        assert module not in above, f"modules import each other: {[*above, module]}"
        if module not in chains:
            below = [chain(other, (*above, module)) for other in sorted(imports[module])]
            chains[module] = [module, *max(below, key=len, default=[])]
        return chains[module]

    return max((chain(module, ()) for module in sorted(imports)), key=len)


def module_text(name: str) -> str:
    path = ROOT.joinpath(*name.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def imports(lazy: bool) -> dict[str, set[str]]:
    """Who imports whom when it is imported, and with lazy also inside its functions; not what
    stands under TYPE_CHECKING.
    """
    graph = grimp.build_graph("subprune", exclude_type_checking_imports=True, cache_dir=None)

    def counts(importer: str, imported: str) -> bool:
        places = graph.get_import_details(importer=importer, imported=imported)
        lines = module_text(importer).splitlines()
        return lazy or any(not lines[p["line_number"] - 1].startswith(" ") for p in places)

    return {
        module: {x for x in graph.find_modules_directly_imported_by(module) if counts(module, x)}
        for module in graph.modules
    }


@pytest.mark.parametrize("lazy", [False, True], ids=["at once", "also inside functions"])
def test_the_longest_chain_of_imports_is_short(lazy: bool) -> None:
    longest = longest_chain(imports(lazy))
    assert len(longest) <= LONGEST_CHAIN, (
        f"{len(longest)} modules import one another in a row, at most {LONGEST_CHAIN} may: "
        f"{' > '.join(longest)}. Split one that brings more than its users need, or import a type "
        "under TYPE_CHECKING"
    )


def test_imports_inside_functions_are_the_difference() -> None:
    lines = (LIBRARY / "cli/prune.py").read_text().splitlines()
    assert any(line.startswith("    from subprune.cli.pruning import") for line in lines)
    assert "subprune.cli.pruning" in imports(lazy=True)["subprune.cli.prune"]
    assert "subprune.cli.pruning" not in imports(lazy=False)["subprune.cli.prune"]
    assert "subprune.cli.arguments" in imports(lazy=False)["subprune.cli.prune"]


def test_every_import_of_a_module_is_written_as_one() -> None:
    """Chains are made of import statements: no module hides one in a string, but for the front
    door, whose public names are imported when they are used, and names that users give.
    """
    own = {"__init__.py", "cli/hubs.py", "cli/loading.py", "io/export.py"}
    hidden = re.compile(r"import_module\(|__import__\(|find_spec\(|spec_from_file_location\(")
    found = [path for path, text in sources() if hidden.search(text) and path not in own]
    assert not found, f"these import modules by strings: {found}"
    for path in own - {"__init__.py"}:
        assert not re.search(r"import_module\(f?['\"]subprune", (LIBRARY / path).read_text()), path


def test_chains_are_measured() -> None:
    assert longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ["a", "b", "c"]
    with pytest.raises(AssertionError, match="import each other"):
        longest_chain({"a": {"b"}, "b": {"a"}})


# The doors, where names are gathered that live elsewhere.
DOORS = {"subprune", "subprune.guarantees"}


def own_names(text: str) -> set[str]:
    """What a module makes itself, at its outermost level."""
    made = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            stored = (n for n in ast.walk(node) if isinstance(n, ast.Name | ast.FunctionDef))
            made |= {n.id if isinstance(n, ast.Name) else n.name for n in stored}
    return made


def taken(text: str) -> Iterator[tuple[str, str]]:
    """The names that a module imports, each with where from."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_names_are_imported_from_where_they_live() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    homes: dict[str, set[str]] = {}
    found = []
    for path in files:
        for module, name in taken(path.read_text()):
            if not module.startswith("subprune.") or module in DOORS:
                continue
            place = LIBRARY.joinpath(*module.split(".")[1:])
            if (place / f"{name}.py").is_file() or (place / name).is_dir():
                continue
            if module not in homes:
                homes[module] = own_names(module_text(module))
            if name not in homes[module]:
                found.append(f"{path.relative_to(ROOT)}: {name} from {module}")
    assert not found, f"import these from the modules that make them: {found}"


def test_what_a_module_makes_is_known() -> None:
    text = "from a import b\nimport c\nX: int = 1\ndef f(): ...\nif X:\n    Y = 2\nclass C: ..."
    assert own_names(text) == {"X", "int", "f", "Y", "C"}
    assert list(taken(text)) == [("a", "b")]


# ---- lines -----------------------------------------------------------------------------------


def long_lines(text: str) -> int:
    return sum(len(line) > LONG_LINE for line in text.splitlines())


def test_few_lines_are_long() -> None:
    texts = {f"{f}/{path}": text for f in FOLDERS for path, text in sources(ROOT / f)}
    lines = sum(len(text.splitlines()) for text in texts.values())
    long = {path: long_lines(text) for path, text in texts.items()}
    share = sum(long.values()) / lines
    worst = sorted(long, key=lambda path: -long[path])[:5]
    assert share < MOST_LONG_LINES, (
        f"{share:.1%} of all lines have more than {LONG_LINE} characters, {MOST_LONG_LINES:.0%} "
        f"is too many; most of them are in {worst}"
    )


def test_a_long_line_is_counted() -> None:
    assert long_lines("x" * 100 + "\n" + "x" * 101) == 1


# ---- language --------------------------------------------------------------------------------

# Phrases that are not English, or need a second reading, each with what is meant.
ODD = {
    r"leaves? it away|left away": "omitted",
    r"\banew\b": "again, re-estimated",
    r"(?<!there )is no (file|folder|number|tensor|module|option)\b": "is not a …",
    r"[Ss]o many (of|positions|bytes|inputs|units|samples|rows)\b": "this many",
    r"handed through": "passed through",
    r"\blest\b": "so that … not",
    r"\bbeside (that|others|what|the (paper|other|rest))\b": "besides, next to, compared with",
}


def odd_phrases(text: str) -> list[str]:
    """Phrases of the table in a text, each with what to write instead."""
    text = " ".join(text.split())
    return [f"{m[0]!r}: {better}" for odd, better in ODD.items() for m in re.finditer(odd, text)]


def test_the_english_is_plain() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *LIBRARY.rglob("*.html")]
    texts = {path: path.read_text() for path in (*pages, *LIBRARY.rglob("*.py"))}
    texts |= {path: path.read_text() for path in PAPER.rglob("*.py")}
    texts = {p: t for p, t in texts.items() if not p.name.startswith("results-")}  # made by scripts
    found = {str(p.relative_to(ROOT)): odd_phrases(text) for p, text in texts.items()}
    found = {path: phrases for path, phrases in found.items() if phrases}
    assert not found, f"say it in plain English: {found}"


def test_odd_phrases_are_found() -> None:
    assert odd_phrases("where it is\n    no file") == ["'is no file': is not a …"]
    assert not odd_phrases("there is no file")
