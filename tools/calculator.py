"""Safe arithmetic: a parsed expression is walked, never evaluated.

Invariant: the work is bounded before it is done (length, depth, exponent, size of every number).
"""

import ast
import math
import operator
from collections.abc import Callable

from langchain_core.tools import tool

MAX_LENGTH, MAX_DEPTH, MAX_EXPONENT, MAX_BITS = 200, 40, 64, 256
Number = int | float

BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluate(expr: str) -> Number:
    """The value of an arithmetic expression; ValueError says what is wrong with it."""
    if len(expr) > MAX_LENGTH:
        raise ValueError(f"the expression is longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(expr.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("not an arithmetic expression") from None
    return _bounded(_value(tree.body, 0))


def written(value: Number) -> str:
    """The shortest way to write a number: no trailing zeros, no exponent for whole numbers."""
    if isinstance(value, float):
        value = round(value, 6)
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


@tool("calc")
def calculate(expr: str) -> str:
    """Work out an arithmetic expression such as 24+28*4."""
    try:
        return written(evaluate(expr))
    except ValueError as problem:
        return f"error: {problem}"


def _value(node: ast.expr, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise ValueError("too many brackets")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _value(inner, depth + 1)
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(op, _value(left, depth + 1), _value(right, depth + 1))
    raise ValueError("only numbers, + - * / // % ** and brackets are allowed")


def _combined(op: ast.operator, left: Number, right: Number) -> Number:
    try:
        if isinstance(op, ast.Pow):
            return _power(left, right)
        if type(op) not in BINARY:
            raise ValueError("only + - * / // % ** are allowed")
        return _bounded(BINARY[type(op)](left, right))
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > MAX_EXPONENT:
        raise ValueError(f"the exponent is larger than {MAX_EXPONENT}")
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise ValueError("the result is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("the result is not a real number")
    return _bounded(result)


def _bounded(value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the result is not a finite number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("the result is too large")
    return value
