"""Nothing that a peer sends is executed or unpickled, because the product has no code that could do it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[4]
#: Modules that create objects or code from bytes, and calls that do (not `re.compile`).
MODULES = {"code", "dill", "cloudpickle", "jsonpickle", "marshal", "pickle", "shelve"}
CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "np.load", "numpy.load"}


def uses(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {name.name.partition(".")[0] for name in names} & MODULES
            case ast.ImportFrom(module=str(module), level=0):
                found |= {module.partition(".")[0]} & MODULES
            case ast.Call(func=function):
                found |= {ast.unparse(function)} & CALLS
    return found


def test_the_product_can_neither_execute_nor_unpickle_what_it_is_sent():
    sources = [
        path for folder in ("proto", "reducer", "worker_plugin") for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(sources) > 100
    found = {str(path.relative_to(ROOT)): uses(ast.parse(path.read_text())) for path in sources}
    assert {path: names for path, names in found.items() if names} == {}


def test_forbidden_uses_are_found():
    assert uses(ast.parse("import pickle\nfrom marshal import loads\neval('1')\ntorch.load(file)")) == {
        *("pickle", "marshal", "eval", "torch.load")
    }
