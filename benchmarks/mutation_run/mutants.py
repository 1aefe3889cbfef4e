"""Mutants of a source file, made by Cosmic Ray's operators; without those that nothing can tell from the original."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names


@dataclass(frozen=True, slots=True)
class Mutant:
    """line: the first is 1. code: of the whole file."""

    operator: str
    line: int
    before: str
    after: str
    code: str


def mutants_of(source: str) -> Iterator[Mutant]:
    """Every mutant whose syntax is right, each once."""
    blind = _blind_lines(source)
    seen = {ast.dump(ast.parse(source))}
    lines = source.splitlines()
    for name in operator_names():
        cls = get_operator(name)
        if cls.arguments():
            continue  # would need a list of names
        operator = cls()
        module = get_ast(source)
        places = [start for node in ast_nodes(module) for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, _) in enumerate(places):
            code = None if line in blind else mutate_code(source, operator, occurrence)
            try:
                tree = None if code is None else ast.dump(ast.parse(code))
            except SyntaxError:
                continue
            if code is None or tree is None or tree in seen:
                continue
            seen.add(tree)
            changed = code.splitlines()
            at = next((i for i, (a, b) in enumerate(zip(lines, changed, strict=False)) if a != b), line - 1)
            yield Mutant(name.removeprefix("core/"), at + 1, lines[at].strip(), changed[at].strip(), code)


def _blind_lines(source: str) -> set[int]:
    """Lines whose mutants behave the same: annotations (never evaluated), imports for types, and flags of decorators
    (frozen, slots); and texts of errors, whose formats are no mathematics."""
    blind: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        hidden: list[ast.AST] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            hidden += node.decorator_list
        if isinstance(node, ast.FunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            hidden += [a.annotation for a in arguments if a.annotation is not None]
            hidden += [node.returns] if node.returns is not None else []
        if isinstance(node, ast.AnnAssign) and node.value is None:
            hidden.append(node)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            hidden.append(node)
        if isinstance(node, ast.JoinedStr):
            hidden.append(node)
        for part in hidden:
            # a line with code beside an annotation (a default value) is not blind
            if isinstance(node, ast.FunctionDef) and part not in node.decorator_list and node.args.defaults:
                continue
            blind.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return blind
