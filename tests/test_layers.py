"""Imports point one way: a module imports only from its own layer or from one to its left."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "npmatch"
LAYERS = [
    {"errors", "ranks"},
    {"types", "functional", "data"},
    {"nets", "heads"},
    {"algorithms"},
    {"guard", "record", "compiled", "engine"},
    {"rounds"},  # to come: methods that train in rounds
    {"config"},
    {"published", "presets"},
    {"build"},
    {"progress", "interrupts", "health", "terminal"},
    {"toml", "checkpoint", "runs"},
    {"evaluate", "predictor", "answers", "report"},
    {"plan", "session", "outcome", "fitting"},
    {"check", "contact_sheet", "catalog", "bench", "reproduce"},
    {"cli"},
    {"__main__"},
]


def layer(module):
    name = module.split(".")[1]
    return next(i for i, names in enumerate(LAYERS) if name in names)


def imports():
    for file in sorted(ROOT.rglob("*.py")):
        here = ".".join(("npmatch", *file.relative_to(ROOT).with_suffix("").parts))
        if here == "npmatch.__init__":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("npmatch"):
                below = [f"npmatch.{alias.name}" for alias in node.names] if node.module == "npmatch" else [node.module]
                yield from ((here, module) for module in below if module != "npmatch.__version__")


def test_imports_point_one_way():
    found = list(imports())
    assert len(found) > 50
    assert [f"{here} imports {other}" for here, other in found if layer(other) > layer(here)] == []


def test_one_backward():
    calls = [f.name for f in ROOT.rglob("*.py") for line in f.read_text().splitlines() if ".backward()" in line]
    assert calls == ["engine.py"]


def test_nothing_is_unpickled_evaluated_or_guessed_by_attribute():
    forbidden = {"eval", "exec", "hasattr"}
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in forbidden | {"torch.load", "pickle.load", "pickle.loads"}, f"{file.name}: {name}"
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only", "shell"):
                assert ast.unparse(node.value) != ("True" if node.arg != "weights_only" else "False"), file.name


def test_bars():
    """Design, section 7: an algorithm on two screens, a file in one sitting."""
    for file in ROOT.rglob("*.py"):
        lines = len(file.read_text(encoding="utf-8").splitlines())
        most = {"algorithms": 150, "heads": 180}.get(file.parent.name, 400)
        assert lines <= most, f"{file.relative_to(ROOT)}: {lines} lines"


def statements(file):
    """The simple statements of a file in order, as Python would print them, without imports and docstrings."""
    simple = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr, ast.Assert, ast.Raise)
    found = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, simple)]
    found = [n for n in found if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return [ast.unparse(node) for node in sorted(found, key=lambda node: node.lineno)]


def longest_shared(some, others):
    """The length of the longest run of statements that stands in both."""
    longest, row = 0, [0] * (len(others) + 1)
    for one in some:
        row = [0, *(before + 1 if one == other else 0 for before, other in zip(row, others))]
        longest = max(longest, *row)
    return longest


def test_no_two_methods_share_twelve_statements_in_a_row():
    files = sorted((ROOT / "algorithms").glob("[a-z]*.py"))
    assert len(files) >= 17
    texts = {file.stem: statements(file) for file in files}
    shared = {(a, b): longest_shared(texts[a], texts[b]) for a in texts for b in texts if a < b}
    assert max(shared.values()) < 12, max(shared, key=shared.__getitem__)
    assert longest_shared(texts["npmatch"], texts["npmatch"]) == len(texts["npmatch"])
